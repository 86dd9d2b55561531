"""Bounds on what an ONNX model may declare, checked before anything is allocated: sizes, nesting, text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
from onnx import TensorProto

from daceopt.errors import ModelFileError

_MAX_BYTES = 1 << 40  # of one declared tensor
_MAX_NESTING = 60  # messages; a subgraph in a subgraph takes four
_MAX_NODES = 1 << 20  # with each function written out where it is called
_INT64_MAX = 2**63 - 1

# The standard's inference reads beyond its arrays, and may end the process, for values outside of these bounds.
_ATTRIBUTE_BOUNDS = {"axis": (-(2**31), 2**31 - 1), "batch_dims": (0, 2**31 - 1)}

_BITS = {TensorProto.DOUBLE: 64, TensorProto.INT64: 64, TensorProto.UINT64: 64, TensorProto.COMPLEX64: 64}
_BITS |= {TensorProto.FLOAT: 32, TensorProto.INT32: 32, TensorProto.UINT32: 32, TensorProto.COMPLEX128: 128}
_BITS |= {TensorProto.FLOAT16: 16, TensorProto.BFLOAT16: 16, TensorProto.INT16: 16, TensorProto.UINT16: 16}
_BITS |= {TensorProto.INT8: 8, TensorProto.UINT8: 8, TensorProto.BOOL: 8, TensorProto.INT4: 4, TensorProto.UINT4: 4}
_BITS |= {
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.FLOAT8E4M3FNUZ: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8,
}
# Newer than the oldest version of onnx that will do.
_NEWER = {"FLOAT8E8M0": 8, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
_BITS |= {getattr(TensorProto, name): bits for name, bits in _NEWER.items() if hasattr(TensorProto, name)}

# Where elements without raw_data are kept; types not named here use int32_data.
_FIELDS = {TensorProto.FLOAT: "float_data", TensorProto.COMPLEX64: "float_data", TensorProto.DOUBLE: "double_data"}
_FIELDS |= {TensorProto.COMPLEX128: "double_data", TensorProto.INT64: "int64_data", TensorProto.STRING: "string_data"}
_FIELDS |= {TensorProto.UINT32: "uint64_data", TensorProto.UINT64: "uint64_data"}


def check_messages(model: onnx.ModelProto, name: str) -> None:
    """Walk every message: text is UTF-8, nesting is bounded, every tensor's size is sane and its bytes are there.

    Raises ``ModelFileError``.
    """
    stack: list[tuple[Any, int]] = [(model, 0)]
    while stack:
        message, depth = stack.pop()
        if depth > _MAX_NESTING:
            raise ModelFileError(f"{name}: messages nested deeper than {_MAX_NESTING}; expected fewer subgraphs")
        _check_text(message, name)
        _check_message(message, name)
        stack.extend((child, depth + 1) for child in _children(message))


def check_functions(model: onnx.ModelProto, name: str) -> None:
    """The model's own functions do not call themselves, and are not too much where each call stands for a body: the
    standard's inference walks through the body at each.

    Raises ``ModelFileError``.
    """
    nodes = {_name_operator(f, f.name): list(_nodes(f)) for f in model.functions}
    calls = {f: [c for node in own if (c := _name_operator(node, node.op_type)) in nodes] for f, own in nodes.items()}
    sizes: dict[Any, int] = {}
    try:
        for f in TopologicalSorter(calls).static_order():
            sizes[f] = len(nodes[f]) + sum(sizes[c] for c in calls[f])
    except CycleError as error:
        raise ModelFileError(f"{name}: function {error.args[1][0][1][:100]!r} calls itself; expected an end") from error
    total = sum(1 + sizes.get(_name_operator(node, node.op_type), 0) for node in _nodes(model.graph))
    if total > _MAX_NODES and sizes:
        raise ModelFileError(
            f"{name}: calls of its functions stand for {total} nodes, expected up to {_MAX_NODES}; the file is hostile"
        )


def _name_operator(message: Any, called: str) -> tuple[str, str, str]:
    return message.domain, called, getattr(message, "overload", "")


def _nodes(message: Any) -> Iterator[onnx.NodeProto]:
    """Those of a graph or function, and those inside of them."""
    stack = list(message.node)
    while stack:
        node = stack.pop()
        yield node
        graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
        stack.extend(inner for graph in graphs for inner in graph.node)


def _children(message: Any) -> list[Any]:
    children: list[Any] = []
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            children.extend(value if field.is_repeated else [value])
    return children


def _check_text(message: Any, name: str) -> None:
    """Protobuf hands out text that is not UTF-8 as bytes, which nobody downstream expects."""
    for field in message.DESCRIPTOR.fields:
        if field.type != field.TYPE_STRING:
            continue
        value = getattr(message, field.name)
        if not all(isinstance(text, str) for text in (value if field.is_repeated else [value])):
            kind = type(message).__name__
            raise ModelFileError(f"{name}: {kind}.{field.name} is not UTF-8 text; the file is damaged, export it again")


def _check_attributes(node: onnx.NodeProto, name: str) -> None:
    """What would end the process in the standard's inference, which also does so where a Split has more results than
    it says."""
    for a in node.attribute:
        least, most = _ATTRIBUTE_BOUNDS.get(a.name, (a.i, a.i))
        if a.type == onnx.AttributeProto.INT and not least <= a.i <= most:
            where = f"{name}: {node.op_type} {node.name!r} has {a.name} {a.i}"
            raise ModelFileError(f"{where}; expected {least} to {most}, the file is damaged or hostile")
    counts = [a.i for a in node.attribute if a.name == "num_outputs"]
    if node.op_type == "Split" and counts and counts[0] != len(node.output):
        raise ModelFileError(f"{name}: Split {node.name!r} has {len(node.output)} results, its num_outputs {counts[0]}")


def _check_message(message: object, name: str) -> None:
    if isinstance(message, onnx.NodeProto):
        _check_attributes(message, name)
    if isinstance(message, TensorProto):
        check_tensor(message, name)
    elif isinstance(message, onnx.SparseTensorProto):
        _elements(list(message.dims), 64, f"{name}: sparse tensor {message.values.name!r}")
    elif isinstance(message, onnx.TypeProto.Tensor):
        _check_declared(message, f"{name}: a declared tensor type")


def check_tensor(tensor: TensorProto, name: str) -> None:
    """The tensor's type is known, its size is in bounds, and as many bytes are present as it declares (unless they
    are external).
    """
    where = f"{name}: tensor {tensor.name[:100]!r}"
    if tensor.data_type != TensorProto.STRING and tensor.data_type not in _BITS:
        raise ModelFileError(
            f"{where} has element type {tensor.data_type}, which daceopt does not know; convert the model"
        )
    count = _elements(list(tensor.dims), _BITS.get(tensor.data_type, 8), where)
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    expected, present, unit = _amount(tensor, count)
    if expected != present:
        dims = list(tensor.dims)
        raise ModelFileError(
            f"{where} declares shape {dims}, {expected} {unit}, but {present} are present; "
            "the file is damaged, export it again"
        )


def byte_count(tensor: TensorProto) -> int:
    """Bytes of the tensor's elements as they lie in raw or external data."""
    return (math.prod(tensor.dims) * _BITS[tensor.data_type] + 7) // 8


def _amount(tensor: TensorProto, count: int) -> tuple[int, int, str]:
    """Expected and present amount of data, and its unit."""
    if tensor.HasField("raw_data") and tensor.data_type != TensorProto.STRING:
        return byte_count(tensor), len(tensor.raw_data), "bytes"
    present = len(getattr(tensor, _FIELDS.get(tensor.data_type, "int32_data")))
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        count *= 2
    bits = _BITS.get(tensor.data_type, 8)
    if bits in (2, 4):  # packed into bytes, each of which is an element of int32_data
        count = (count * bits + 7) // 8
    return count, present, "elements"


def _elements(dims: list[int], bits: int, where: str) -> int:
    """Number of elements in Python's own integers, which do not overflow."""
    if any(d < 0 for d in dims):
        raise ModelFileError(f"{where} declares a negative extent in {dims}; the file is damaged, export it again")
    count = math.prod(d for d in dims if d != 0)
    if count > _INT64_MAX or count * bits // 8 > _MAX_BYTES:
        raise ModelFileError(
            f"{where} declares {dims}, more than {_MAX_BYTES >> 30} GiB; the file is damaged or hostile"
        )
    return 0 if 0 in dims else count


def _check_declared(tensor: onnx.TypeProto.Tensor, where: str) -> None:
    dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
    _elements(dims, _BITS.get(tensor.elem_type, 8), where)


def check_declared_sizes(model: onnx.ModelProto, name: str) -> None:
    """The same bound on the shapes that inference found: an operator may ask for a size that no value declares."""
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.type.HasField("tensor_type"):
            _check_declared(value.type.tensor_type, f"{name}: value {value.name[:100]!r}")
