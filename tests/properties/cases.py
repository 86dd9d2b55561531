"""Random one-operator models: shapes, types and attributes as hypothesis draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[..., Any]
FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMMON = ("float32", "float64", "int32", "int64")  # what ONNX Runtime implements for most operators


@dataclass
class Case:
    """One node over ``inputs`` (None: absent); those at positions ``constants`` are initializers.

    ``narrow``: the element type to which float32 inputs are cast before the node. Results of this type, and of types
    that NumPy lacks, are cast back. ``declared``: shapes of results that cannot be inferred. An attribute may be a
    function of the floating-point element type.
    """

    op_type: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constants: tuple[int, ...] = ()
    opset: int = 21
    narrow: str = ""
    declared: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.narrow:
            self.inputs = [i if i is None or i.dtype != np.float32 else _rounded(i, self.narrow) for i in self.inputs]

    def __repr__(self) -> str:
        inputs = [None if i is None else f"{i.dtype}{list(i.shape)}" for i in self.inputs]
        values = {k: np.asarray(self.inputs[k]).tolist() for k in self.constants}
        name = f"{self.op_type}-{self.opset}" + (f"-{self.narrow}" if self.narrow else "")
        return f"{name}({inputs}, constants={values}, {self.attributes})"

    def fed(self) -> dict[str, np.ndarray]:
        """The inputs of a call by name."""
        pairs = enumerate(self.inputs)
        return {f"x{k}": value for k, value in pairs if value is not None and k not in self.constants}

    def model(self, wide: bool = False) -> onnx.ModelProto:
        """The checked, shape-inferred model; ``wide``: with float64 for float32 and for the narrow type."""
        given = [(f"x{k}", widened(v) if wide else v) for k, v in enumerate(self.inputs) if v is not None]
        narrowed = {n for n, v in given if v.dtype == np.float32 and self.narrow}
        kind = TensorProto.DOUBLE if wide else TensorProto.FLOAT
        attributes = {k: v(kind) if callable(v) else v for k, v in self.attributes.items()}
        names = [("" if v is None else f"n{k}" if f"x{k}" in narrowed else f"x{k}") for k, v in enumerate(self.inputs)]
        results = [f"y{k}" for k in range(self.outputs)]
        casts = [helper.make_node("Cast", [n], [f"n{n[1:]}"], to=_element(self.narrow)) for n in sorted(narrowed)]
        node = helper.make_node(self.op_type, names, results, **attributes)
        constants = [numpy_helper.from_array(v, n) for n, v in given if int(n[1:]) in self.constants]
        values = [_value(n, v) for n, v in given if int(n[1:]) not in self.constants]
        outputs = [helper.make_empty_tensor_value_info(n) for n in results]
        model = self._inferred([*casts, node], values, outputs, constants)
        back = [o.name for o in model.graph.output if _is_narrow(o.type.tensor_type.elem_type, self.narrow)]
        if not back:
            return model
        for k, name in enumerate(results):
            node.output[k] = f"r{k}" if name in back else name
        casts += [node, *(helper.make_node("Cast", [f"r{n[1:]}"], [n], to=kind) for n in back)]
        outputs = [helper.make_empty_tensor_value_info(n) for n in results]
        return self._inferred(casts, values, outputs, constants)

    def open_model(self) -> onnx.ModelProto:
        """The model with names for the extents of its inputs: equal ones have one name, and 1 remains a number."""
        model = self.model()
        for value in model.graph.input:
            extents = list(value.type.tensor_type.shape.dim)
            if self.op_type == "Attention":
                extents = extents[:-1]  # ONNX infers 0 from an open width of several heads
            for d in extents:
                if d.dim_value != 1:
                    d.dim_param = f"n{d.dim_value}"
        for value in [] if self.declared else model.graph.output:
            for d in value.type.tensor_type.shape.dim:
                d.Clear()
        del model.graph.value_info[:]
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    def _inferred(self, nodes: list[Any], values: list[Any], outputs: list[Any], constants: list[Any]) -> Any:
        graph = helper.make_graph(nodes, "case", values, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        for output in model.graph.output:
            if not output.type.HasField("tensor_type"):  # not inferred, as for GroupNormalization: like the input
                output.type.CopyFrom(model.graph.input[0].type)
        for output, shape in zip(model.graph.output, self.declared):
            kind = output.type.tensor_type.elem_type
            output.CopyFrom(helper.make_tensor_value_info(output.name, kind, shape))
        return model


def _element(name: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(narrow_dtype(name)))


def narrow_dtype(name: str) -> np.dtype:
    """The NumPy type called ``name``; of ``ml_dtypes`` for what NumPy itself lacks."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _is_narrow(element: int, narrow: str) -> bool:
    """Is it the type of the case, or one that ONNX Runtime does not hand to Python?"""
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(element))
    return kind == narrow_dtype(narrow) if narrow else kind.type.__module__.startswith("ml_dtypes")


def _rounded(value: np.ndarray, narrow: str) -> np.ndarray:
    return np.asarray(value.astype(narrow_dtype(narrow)).astype(np.float32))


def widened(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float64) if value.dtype == np.float32 else value


def _value(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


# -------------------------------------------------------------------- arrays

SEEDS = st.integers(0, 2**31 - 1)
SIDES = st.sampled_from([1, 2, 3, 4, 5, 7, 9])


def shapes(low: int = 0, high: int = 4, empty: bool = True) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of rank ``low`` to ``high``; a few have an extent of 0 or are wide enough for whole vectors."""
    side = st.one_of(SIDES, SIDES, st.sampled_from([0, 1, 33])) if empty else SIDES
    return st.lists(side, min_size=low, max_size=high).map(tuple)


def array(draw: Draw, shape: tuple[int, ...], dtype: str, low: float = -4.0, high: float = 4.0) -> np.ndarray:
    """Numbers between bounds, some of them equal, zero or integral."""
    generator = np.random.default_rng(draw(SEEDS))
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        least = 0 if kind.kind == "u" else int(low * 5)
        return generator.integers(least, int(high * 5) + 1, shape).astype(kind)
    values = generator.uniform(low, high, shape)
    rounded = generator.random(shape) < 0.2
    return np.asarray(np.where(rounded, np.clip(np.round(values), low, high), values)).astype(kind)


def broadcast_pair(draw: Draw, dtype: str, **bounds: float) -> list[np.ndarray]:
    """Two arrays whose shapes broadcast."""
    shape = draw(shapes())
    other = tuple(1 if draw(st.booleans()) else n for n in shape)[draw(st.integers(0, len(shape))) :]
    both = [array(draw, shape, dtype, **bounds), array(draw, other, dtype, **bounds)]
    return both if draw(st.booleans()) else both[::-1]


def axis_of(draw: Draw, rank: int) -> int:
    """An axis, also counted from the end."""
    return int(draw(st.integers(-rank, rank - 1)))


def some_axes(draw: Draw, rank: int) -> list[int]:
    axes = draw(st.lists(st.integers(0, max(rank - 1, 0)), unique=True, max_size=rank)) if rank else []
    return [a - rank if draw(st.booleans()) else a for a in axes]
