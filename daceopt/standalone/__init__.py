"""Compiled models as folders that need nothing but NumPy to run."""
