"""Libraries beside PyTorch that take the same modules, a file each; importing this package enters them."""

from benchmarks.peers import onnx_runtime, open_vino

__all__ = ["onnx_runtime", "open_vino"]
