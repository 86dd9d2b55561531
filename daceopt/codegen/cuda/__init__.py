"""Kernels as CUDA C++."""
