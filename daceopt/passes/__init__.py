"""Transformations and recipes: what they are, how they run, how they are checked; rewrites as data."""
