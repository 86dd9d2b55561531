"""Which elements the accesses of kernels reach, as functions of their loops."""
