"""Scalar expressions as C-like text, in the dialect of each target."""
