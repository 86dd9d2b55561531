"""``daceopt.from_onnx``: an ONNX model as a callable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from daceopt.errors import DaceoptError
from daceopt.explore.stats import Stats
from daceopt.runtime.bridge import Program

if TYPE_CHECKING:
    import dace
    import onnx

    from daceopt.pipeline import CompiledPair
    from daceopt.recipe import Recipe


def from_onnx(
    path_or_proto: str | Path | bytes | onnx.ModelProto,
    recipe: str | Recipe = "auto",
    fallback: bool = True,
    *,
    verify: str | None = None,
) -> OnnxModel:
    """Compile an ONNX model for inference.

    ``fallback``: operators without a native form run in ONNX Runtime, with one warning that names each kind and the
    reason; without it they raise Unsupported. Raises ModelFileError for a damaged, invalid or unsafe file.
    """
    from daceopt import pipeline
    from daceopt.capture.onnx_file import load

    start = time.perf_counter()
    model = load(path_or_proto)
    pair = pipeline.compile_model(model, recipe=recipe, verify=verify, fallback=fallback)
    given = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in given]
    return OnnxModel(pair, inputs, [v.name for v in model.graph.output], time.perf_counter() - start)


class OnnxModel:
    """A compiled ONNX model. Call it with arrays by position or by input name; numpy in gives numpy out, torch in gives
    torch out.

    One output is returned as it is, several as a list in the model's order. A wrong number, dtype or shape of inputs
    raises DaceoptError that says what was expected; an index out of range raises IndexError. Any number of threads may
    call it.
    """

    def __init__(self, pair: CompiledPair, inputs: Sequence[Any], outputs: Sequence[str], seconds: float):
        self.pair = pair
        self.input_names = [v.name for v in inputs]
        self.output_names = list(outputs)
        self._expected = [_expectation(v) for v in inputs]
        self._program = Program(pair, len(inputs))
        self._stats = Stats(compile_seconds=seconds)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays = self._bind(args, kwargs)
        as_torch = any(isinstance(a, torch.Tensor) for a in arrays)
        tensors = [self._tensor(k, a) for k, a in enumerate(arrays)]
        self._check_shapes(tensors)
        if self._stats.calls == 0:
            self._stats.record(self.pair, {f"input:{k}": tuple(t.shape) for k, t in enumerate(tensors)})
        self._stats.calls += 1
        found = self._program(tensors)
        results = list(found) if as_torch else [t.numpy() for t in found]
        return results[0] if len(results) == 1 else results

    @property
    def sdfg(self) -> dace.SDFG:
        """The optimized graph."""
        return self.pair.graphs.forward.sdfg

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per step of the recipe."""
        return list(self.pair.report["history"])

    @property
    def stats(self) -> Stats:
        return self._stats

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        rest = self.input_names[len(args) :]
        if len(args) > len(self.input_names) or set(kwargs) != set(rest):
            raise DaceoptError(
                f"expected the inputs {self.input_names}, by position or by name; "
                f"got {len(args)} by position and {sorted(kwargs)}"
            )
        return [*args, *(kwargs[name] for name in rest)]

    def _tensor(self, position: int, value: Any) -> torch.Tensor:
        dtype, shape = self._expected[position]
        name = self.input_names[position]
        tensor = _as_tensor(value)
        if tensor is None:
            raise DaceoptError(f"input {name!r}: expected {dtype} of shape {list(shape)}, got {type(value).__name__}")
        if tensor.device.type != "cpu":
            raise DaceoptError(f"input {name!r} is on {tensor.device}; expected a CPU tensor: call .cpu() on it")
        if tensor.dtype != dtype or tensor.dim() != len(shape):
            raise DaceoptError(
                f"input {name!r}: expected {dtype} of shape {list(shape)}, "
                f"got {tensor.dtype} of shape {list(tensor.shape)}"
            )
        return tensor

    def _check_shapes(self, tensors: Sequence[torch.Tensor]) -> None:
        values: dict[str, int] = {}
        for name, tensor, (_, shape) in zip(self.input_names, tensors, self._expected):
            for axis, (wanted, found) in enumerate(zip(shape, tensor.shape)):
                known = wanted if isinstance(wanted, int) else values.setdefault(wanted, found)
                if known != found:
                    expected = known if isinstance(wanted, int) else f"{wanted} = {known}"
                    raise DaceoptError(f"input {name!r}, axis {axis}: expected {expected}, got {found}")


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A strided tensor of the value's numbers, or None where there is none."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.layout is torch.strided else None
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    except (TypeError, ValueError):  # text, objects, ragged lists
        return None


def _expectation(value: Any) -> tuple[torch.dtype, tuple[int | str, ...]]:
    """Dtype and shape (ints and dimension names) that the model declares for an input."""
    from onnx import helper

    tensor = value.type.tensor_type
    dtype = torch.from_numpy(np.empty(0, helper.tensor_dtype_to_np_dtype(tensor.elem_type))).dtype
    return dtype, tuple(d.dim_param or int(d.dim_value) for d in tensor.shape.dim)
