"""Kernels as values: statements over iteration domains, and the node that holds one."""
