"""Kernels as C++ for the CPU."""
