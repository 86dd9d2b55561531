"""Several kernels as one: merged, inlined, joined, stitched, tiled with overlap; and how results flow between nodes."""
