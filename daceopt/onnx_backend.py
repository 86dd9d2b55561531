"""daceopt behind ONNX's interface for backends, under its public name (a re-export)."""

from daceopt.models.onnx_backend import OnnxBackend as Backend
from daceopt.models.onnx_backend import is_compatible, prepare, run_model, run_node, supports_device

__all__ = ["Backend", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
