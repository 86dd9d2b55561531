"""Numbers: element types, symbols, scalar expressions, extents, affine forms, and proofs about sizes."""
