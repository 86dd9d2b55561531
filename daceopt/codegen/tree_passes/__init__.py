"""Passes over the C of a kernel, for what compilers make of it; each is a file."""
