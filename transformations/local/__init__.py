"""Local transformations: data movement inside and between neighbouring kernels."""
