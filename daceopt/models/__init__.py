"""The face to ONNX: models as callables, their programs, and the parts that ONNX Runtime runs."""
