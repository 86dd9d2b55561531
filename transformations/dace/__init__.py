"""Transformations of DaCe under their own names."""
