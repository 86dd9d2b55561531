"""ONNX files that wheels bring: ONNX Runtime takes the place of eager PyTorch, and there is no torch.compile."""

from __future__ import annotations

import importlib.util
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from daceopt import from_onnx


class OnnxFile(nn.Module):
    """A session over a file of a package, made at the first call; ``optimized``: with the operators that it fuses."""

    def __init__(self, package: str, name: str, optimized: bool = True) -> None:
        super().__init__()
        self.package, self.name, self.optimized = package, name, optimized

    @property
    def path(self) -> Path:
        """Raises FileNotFoundError where the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"expected the package {self.package}; run `make world`")
        return Path(spec.submodule_search_locations[0]) / self.name

    def _session(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4
        if not self.optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])

    session = cached_property(_session)

    def __deepcopy__(self, memo: Any) -> OnnxFile:
        return OnnxFile(self.package, self.name, self.optimized)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> list[torch.Tensor]:
        given = named or dict(zip((i.name for i in self.session.get_inputs()), inputs))
        feeds = {name: x.numpy() for name, x in given.items()}
        return [torch.from_numpy(np.asarray(y)) for y in self.session.run(None, feeds)]

    def exact(self) -> OnnxFile:
        """The same file as it is written, without fused operators."""
        return OnnxFile(self.package, self.name, optimized=False)


class OptimizedFile(nn.Module):
    """The same file, as ours compiles it."""

    def __init__(self, file: OnnxFile) -> None:
        super().__init__()
        self.model = from_onnx(file.path)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        return self.model(*inputs, **named)
