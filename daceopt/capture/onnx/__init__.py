"""An ONNX file becomes one checked, shape-inferred model, and that a graph."""
