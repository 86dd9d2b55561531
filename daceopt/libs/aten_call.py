"""One ATen operator run by PyTorch itself as a host call: what operators without a native form become.

The payload is JSON: the operator's name, its arguments with tensors by position among the operands and sizes among the
node's, and the element types, which the arrays of a host call do not tell for types that NumPy lacks. ``run`` reads it
on a CPU; on a device ``libs/torch_call.py`` does, as it prints the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import RunError, Unsupported
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    import torch

    from daceopt.ir.graph.graph import Graph
    from daceopt.torch_internals import torch_operators

RUN, REFUSE = "daceopt.libs.aten_call:run", "daceopt.libs.aten_call:refuse"
"""The callbacks of the calls that are made here."""

_SIMPLE = (bool, int, float, str, type(None))
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}  # the type of both parts
_POSITIONS = {"Operand": "tensor", "Item": "item"}  # kinds of positions among the operands


def add(
    graph: Graph,
    target: torch_operators.OpOverload,
    arguments: Mapping[str, Any],
    operands: Sequence[str],
    results: Sequence[Any],
    complex_operands: Sequence[int] = (),
    complex_results: Sequence[int] = (),
    orders: Sequence[Sequence[int]] = (),
) -> list[str | None]:
    """Add a HostCall of the overload ``target``; ``results``: (shape, dtype) of each, dtype None where it is no tensor.

    ``arguments`` by name of the schema: positions among ``operands`` as int subclasses, ``Operand`` for a tensor and
    ``Item`` for the number in one; SymPy expressions for sizes.
    ``complex_operands`` and ``complex_results``: those whose arrays have both parts along their last axis.
    ``orders``: the axes of each operand from the outermost in memory, as it was traced: what some operators give
    depends on it (``_linalg_det`` decomposes a matrix or its transpose), and their derivatives with it.
    Raises Unsupported for arguments that cannot be written down.
    """
    encoder = _Encoder(graph, list(operands))
    encoded = {name: encoder.encode(value) for name, value in arguments.items()}
    outputs = [None if dtype is None else graph.add_array("host", shape, dtype) for shape, dtype in results]
    written = [k for k, n in enumerate(outputs) if n is not None]
    payload = {
        "target": f"{target._schema.name}.{target._overloadname}",
        "arguments": encoded,
        "types": [_kind(graph.dtype(n), k in complex_operands) for k, n in enumerate(encoder.operands)],
        "orders": [list(order) for order in orders],
        "results": [[k, _kind(results[k][1], k in complex_results), len(results[k][0])] for k in written],
    }
    label = target._schema.name.rpartition("::")[2].strip("_")
    call = HostCall(label, callback=RUN, payload=json.dumps(payload), sizes=encoder.sizes)
    reads = {f"In{k}": name for k, name in enumerate(encoder.operands)}
    writes = {f"Out{k}": require(outputs, at) for k, at in enumerate(written)}
    graph.add_node(call, reads, writes)
    return outputs


def _kind(dtype: torch.dtype, is_complex: bool) -> str:
    name = types.name_of(dtype)
    return {"float32": "complex64", "float64": "complex128", "float16": "complex32"}[name] if is_complex else name


class _Encoder:
    """Arguments as JSON. Sizes known at run time only go into ``sizes``; numbers that follow from them, and are not
    whole, become further operands."""

    def __init__(self, graph: Graph, operands: list[str]) -> None:
        self.graph, self.operands = graph, operands
        self.sizes: list[Dim] = []

    def encode(self, value: Any) -> Any:
        import sympy
        import torch

        if isinstance(value, sympy.Expr):
            return {"size": self._size(value)} if value.is_integer else {"number": self._number(value)}
        if type(value).__name__ in _POSITIONS:
            return {_POSITIONS[type(value).__name__]: int(value)}
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, _SIMPLE):
            return value
        if isinstance(value, (list, tuple)):
            return [self.encode(v) for v in value]
        if isinstance(value, complex):
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": value.type}
        raise Unsupported(f"an argument of type {type(value).__name__} ({value})")

    def _size(self, value: object) -> int:
        self.sizes.append(value)
        return len(self.sizes) - 1

    def _number(self, value: object) -> int:
        out = self.graph.add_array("number", (), types.from_name("float64"))
        Builder(self.graph, "number").map((), {}, {"out": (out, lambda: ())}, lambda i: value)
        self.operands.append(out)
        return len(self.operands) - 1


def refusal(graph: Graph, message: str, results: Sequence[Any]) -> list[str]:
    """Arrays of these (shape, dtype) that nobody can compute: a program that does raises RuntimeError(``message``)."""
    outputs = [graph.add_array("refused", shape, dtype) for shape, dtype in results]
    call = HostCall("refused", callback=REFUSE, payload=message)
    graph.add_node(call, {}, {f"Out{k}": name for k, name in enumerate(outputs)})
    return outputs


def refuse(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """What a refusal does when it runs."""
    raise RuntimeError(payload)


def run(payload: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
    """Call the operator in ``payload`` and copy its results into ``outputs``."""
    import torch

    name, arguments, names, orders, results = _decode_payload(payload)
    target = operator(name)
    sizes = [int(n) for array in inputs[len(names) :] for n in array]
    tensors = [_tensor(array, name) for array, name in zip(inputs, names)]
    tensors[: len(orders)] = [_lay_out(t, *order) for t, order in zip(tensors, orders)]
    positional, named = _arguments(target, arguments, tensors, sizes)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        result = target(*positional, **named)
    values = result if isinstance(result, (tuple, list)) else (result,)
    for array, (position, name, rank) in zip(outputs, results, strict=True):
        _store(array, values[position], name, rank)


def _lay_out(tensor: torch.Tensor, order: list[int], inverse: list[int]) -> torch.Tensor:
    return tensor.permute(order).contiguous().permute(inverse)


def _store(array: np.ndarray, value: torch.Tensor, name: str, rank: int) -> None:
    import torch

    if name in _PARTS:
        value, name = torch.view_as_real(value.resolve_conj().resolve_neg()), _PARTS[name]
    shape = tuple(value.shape)
    promised = array.shape if rank else ()  # an array of rank 0 comes with one element
    if shape != promised:
        raise RunError(f"ATen returned shape {shape}; expected {promised}, which its shape rule promised")
    _tensor(array, name).copy_(value.reshape(array.shape))


_Order = tuple[list[int], list[int]]  # the axes from the outermost in memory, and the way back


@lru_cache(4096)
def _decode_payload(payload: str) -> tuple[str, dict[str, Any], list[str], list[_Order], list[tuple[int, str, int]]]:
    text = json.loads(payload)
    orders = [(order, sorted(range(len(order)), key=order.__getitem__)) for order in text["orders"]]
    return text["target"], text["arguments"], text["types"], orders, [(k, n, r) for k, n, r in text["results"]]


def operator(name: str) -> torch_operators.OpOverload:
    """The operator of that name now: one that a user has registered anew is gone, and so is what calls it."""
    import torch

    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _arguments(
    target: torch_operators.OpOverload, arguments: dict[str, Any], tensors: list[torch.Tensor], sizes: Sequence[int]
) -> tuple[list[Any], dict[str, Any]]:
    values = {name: _decode(value, tensors, sizes) for name, value in arguments.items()}
    schema = target._schema.arguments
    return [values[a.name] for a in schema if not a.kwarg_only], {
        a.name: values[a.name] for a in schema if a.kwarg_only
    }


def _decode(value: object, tensors: list[torch.Tensor], sizes: Sequence[int]) -> Any:
    import torch

    if isinstance(value, list):
        return [_decode(v, tensors, sizes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "size":
        return sizes[content]
    if kind in _OF_TENSOR:
        return _OF_TENSOR[kind](tensors[content])
    if kind in _OF_TEXT:
        return _OF_TEXT[kind](content)
    return torch.device(content) if kind == "device" else getattr(torch, content)


_OF_TENSOR: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "item": lambda tensor: tensor.item(),
    "number": lambda tensor: float(tensor.item()),
}
_OF_TEXT: dict[str, Callable[[Any], float | complex]] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
}


def _tensor(array: np.ndarray, name: str) -> torch.Tensor:
    """A tensor over the memory of ``array``; a copy only where NumPy's strides are none that PyTorch has."""
    import torch

    if name in _PARTS:
        parts = _tensor(array, _PARTS[name])
        if not parts.numel():  # strides of no elements say nothing
            return torch.empty(array.shape[:-1], dtype=getattr(torch, name), device="cpu")
        return torch.view_as_complex(parts.contiguous())
    dtype = getattr(torch, name)
    if any(s < 0 for s in array.strides):
        array = np.ascontiguousarray(array)
    if array.dtype.kind != "V":
        return torch.from_numpy(array).view(dtype) if array.dtype.name != name else torch.from_numpy(array)
    bits = array.view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
    return torch.from_numpy(bits).view(dtype)
