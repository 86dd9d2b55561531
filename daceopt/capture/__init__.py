"""Capture: an ``nn.Module`` call or an ONNX file becomes one checked, shape-inferred ONNX graph with its parameter
bindings.
"""

from daceopt import versions

versions.require()  # before DaCe is imported, whose absence says less
