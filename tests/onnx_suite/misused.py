"""The suite's models with attributes and parameters that make little sense: wrong lengths, ranges, words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import onnx

from daceopt.capture.onnx.importer import sizing_operands
from daceopt.ir.graph.operator import schema_of
from tests.onnx_suite import isolated
from tests.onnx_suite.bases import CHANCE, base, bases
from tests.onnx_suite.cases import cases

PREFIX = "attributes"
_INT = (-1, 0, 2, 7, -9)
_TEXT = ("", "no such word")
_FLOAT = (0.0, -1.0, float("nan"))
# Element types, and switches: what the standard has as 0 or 1, its own inference and ONNX Runtime read in several ways.
_UNTRIED = frozenset(
    "dtype to output_dtype output_datatype stash_type precision value saturate interleaved ceil_mode keepdims "
    "exclude_outside largest num_outputs noop_with_empty_axes sorted antialias align_corners select_last_index".split()
)

Change = tuple[str, Any]  # attribute, or position of an input behind "#"; its new value


def names(op_type: str, models: int = 2) -> list[str]:
    """``attributes/model/k`` for the k-th change of so many of the operator's models."""
    found = bases().get(op_type, [])
    chosen = found[:: max(1, len(found) // models)][:models]
    return [f"{PREFIX}/{b.name}/{k}" for b in chosen for k, _ in enumerate(_changes(b.name))]


class Misused:
    """A case (see ``cases.Case``) made from a base and the number of a change."""

    kind = "node"

    def __init__(self, name: str):
        self.name = name
        _, origin, number = name.split("/")
        self._base = base(origin)
        self.change = _changes(origin)[int(number)]

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model; its results have the shapes that inference finds, where it finds any."""
        made = onnx.ModelProto()
        made.CopyFrom(self._base.model)
        where, value = self.change
        node = made.graph.node[0]
        if where.startswith("#"):
            declared = next(v for v in made.graph.input if v.name == node.input[int(where[1:])])
            for dim, extent in zip(declared.type.tensor_type.shape.dim, value.shape):
                dim.dim_value = extent
        else:
            kept = [a for a in node.attribute if a.name != where]
            del node.attribute[:]
            node.attribute.extend([*kept, _attribute(where, value, node.op_type)])
        return _with_inferred_results(made, self.inputs)

    @cached_property
    def inputs(self) -> list[Any]:
        where, value = self.change
        name = self._base.node.input[int(where[1:])] if where.startswith("#") else None
        return [value if v.name == name else old for v, old in zip(self._base.model.graph.input, self._base.inputs)]

    @property
    def tolerances(self) -> tuple[float, float]:
        """Relative, and absolute beside the largest value."""
        return 1e-3, 1e-5 * isolated.largest(self._expected)

    @cached_property
    def _expected(self) -> list[Any] | None:
        value = self.change[1]
        meaningless = isinstance(value, float) and math.isnan(value)
        if meaningless or not _is_trusted(self._base.name):
            return None
        found = isolated.results(self.model, self.inputs)
        return found if found is None or self._has_declared_shapes(found) else None

    def _has_declared_shapes(self, results: Sequence[Any]) -> bool:
        """ONNX Runtime and the standard's inference do not read all attributes in the same way."""
        declared = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in self.model.graph.output]
        return all(
            len(shape) == np.ndim(r) and all(e in (0, n) for e, n in zip(shape, np.shape(r)))
            for shape, r in zip(declared, results, strict=True)
        )

    def data(self) -> list[tuple[list[Any], list[Any] | None]]:
        """The expected results are ONNX Runtime's, None where it refuses."""
        return [(self.inputs, self._expected)]


@cache
def _is_trusted(origin: str) -> bool:
    """Does ONNX Runtime give the suite's results for the model that was changed?"""
    found = base(origin)
    if found.node.op_type in CHANCE or origin not in cases():
        return False
    ours = isolated.results(found.model, found.inputs)
    theirs = cases()[origin].data()[0][1]
    return ours is not None and all(_agree(a, b) for a, b in zip(ours, theirs, strict=True))


def _agree(ours: Any, theirs: Any) -> bool:
    a, b = (np.asarray(v).astype(np.float64) for v in (ours, theirs))
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-2, atol=1e-4, equal_nan=True)


def _with_inferred_results(model: onnx.ModelProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    known = onnx.ModelProto()
    known.CopyFrom(model)
    given = zip(model.graph.input, inputs, strict=True)
    known.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), v.name) for v, a in given)
    del known.graph.output[:]
    known.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in model.graph.output)
    inferred = isolated.inferred(known)
    if inferred is None:
        return model
    for declared, found in zip(model.graph.output, inferred.graph.output, strict=True):
        if found.type.tensor_type.HasField("shape"):
            declared.type.CopyFrom(found.type)
            continue
        for dim in declared.type.tensor_type.shape.dim:
            dim.Clear()
    return model


def _attribute(name: str, value: Any, op_type: str) -> onnx.AttributeProto:
    made = onnx.AttributeProto(name=name, type=int(schema_of(op_type).attributes[name].type))
    if isinstance(value, list):
        made.ints.extend(value)
    elif isinstance(value, str):
        made.s = value.encode()
    elif isinstance(value, float):
        made.f = value
    else:
        made.i = value
    return made


def _changes(origin: str) -> list[Change]:
    found = base(origin)
    given = {a.name: onnx.helper.get_attribute_value(a) for a in found.node.attribute}
    attributes = schema_of(found.node.op_type).attributes
    changes = [(n, v) for n in sorted(set(attributes) - _UNTRIED) for v in _values(attributes[n], given.get(n))]
    by_name = dict(zip((v.name for v in found.model.graph.input), found.inputs))
    sizing = sizing_operands(found.node)
    for k, name in enumerate(found.node.input):
        if name in sizing and np.asarray(by_name.get(name, 0.5)).dtype.kind == "i":
            changes += [(f"#{k}", v) for v in _arrays(np.asarray(by_name[name]))]
    return changes


def _values(attribute: Any, given: Any) -> Iterator[Any]:
    kind = int(attribute.type)
    if kind == onnx.AttributeProto.INT:
        yield from (v for v in _INT if v != given)
    elif kind == onnx.AttributeProto.FLOAT:
        yield from _FLOAT
    elif kind == onnx.AttributeProto.STRING:
        yield from _TEXT
    elif kind == onnx.AttributeProto.INTS:
        yield from _lists(list(given) if given is not None else [1, 1])


def _lists(given: list[int]) -> Iterator[list[int]]:
    yield from ([], given[:-1], [*given, 1], [0] * len(given), [-1] * len(given), [-7] * len(given))
    yield from ([9, *given[1:]], given[:1] * len(given), given[::-1])


def _arrays(given: np.ndarray) -> Iterator[np.ndarray]:
    if given.ndim == 1:
        yield from (np.array(v, given.dtype) for v in _lists(given.tolist()))
    elif given.ndim == 0:
        yield from (np.array(v, given.dtype) for v in (-1, 0, 7, -9))
