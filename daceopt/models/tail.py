"""The part of an ONNX model that runs in ONNX Runtime, on what its compiled part computed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from daceopt.errors import FallbackWarning
from daceopt.libs.onnxruntime_model import RuntimeModel
from daceopt.logs import caller_depth
from daceopt.runtime.tensors import dtype_of, to_numpy

if TYPE_CHECKING:
    from daceopt.capture.onnx.partition import Split


class Tail:
    """One ONNX Runtime session for the tail of a model with these inputs and outputs. Any number of threads may run it.

    ``operators``: its operator types and why each is in it; ``reasons``: the same for each node, by its first output.
    Raises Unsupported when ONNX Runtime does not take it.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], split: Split):
        self.operators: Mapping[str, str] = split.operators()
        self.reasons = split.reasons
        self._session = RuntimeModel(split.tail)
        native = [v.name for v in split.native.graph.output]
        late = [v.name for v in split.tail.graph.output]
        self._reads = [
            (v.name in inputs, (inputs if v.name in inputs else native).index(v.name), dtype_of(v))
            for v in split.tail.graph.input
        ]
        self._results = [(name in late, (late if name in late else native).index(name)) for name in outputs]

    def run(self, inputs: Sequence[Any], computed: Sequence[torch.Tensor]) -> list[Any]:
        """The model's outputs, from its inputs and the results of its compiled part; tensors where they are of those.

        Raises DaceoptError for inputs that do not fit, RunError where the tail fails.
        """
        feeds = []
        for outer, position, dtype in self._reads:
            value = inputs[position] if outer else computed[position]
            feeds.append(value if dtype is None else to_numpy(value.contiguous(), dtype))
        results = self._session.run(feeds)
        return [results[k] if late else computed[k] for late, k in self._results]

    def announce(self) -> None:
        """Warn of the operators that are not compiled, with the reasons."""
        warnings.warn(str(self), FallbackWarning, stacklevel=caller_depth())

    def __str__(self) -> str:
        kinds: dict[str, list[str]] = {}
        for kind, reason in self.operators.items():
            kinds.setdefault(reason, []).append(kind)
        why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in kinds.items())
        return f"the end of the model, {len(self.reasons)} of its operators, runs in ONNX Runtime: {why}"
