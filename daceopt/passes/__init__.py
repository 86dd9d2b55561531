"""Transformations and recipes: what they are, how they run, how they are checked; rewrites as data."""

from daceopt import versions

versions.require()  # before DaCe is imported, whose absence says less
