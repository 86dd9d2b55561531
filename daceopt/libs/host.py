"""Calls from generated code into Python: ``HostCall`` nodes, and what every other library can fall back to."""

from __future__ import annotations

import ctypes
import importlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from daceopt._version import __version__
from daceopt.codegen.compiler import Flags
from daceopt.errors import RunError
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim
from daceopt.libs.base import Library, Missing, Requirements, register, support
from daceopt.libs.emission import braces, literal, whole

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

Callback = Callable[[str, Sequence[np.ndarray], Sequence[np.ndarray]], None]
_MESSAGE_BYTES = 512


class HostOperand(ctypes.Structure):
    """One array of a call, as in ``daceopt/host_call.h``: address, name of the type, sizes and strides in elements."""

    _fields_: ClassVar[list[Any]] = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    ]


@cache
def resolve(callback: str) -> Callback:
    """Return the function that ``"package.module:function"`` names; raises RunError if there is none."""
    module, _, function = callback.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunError(f"host call {callback!r}: expected an importable package.module:function; {error}") from error


def _array(operand: HostOperand) -> np.ndarray:
    dtype = types.to_numpy(types.from_name(operand.dtype.decode()))
    shape = tuple(operand.shape[d] for d in range(operand.rank))
    strides = tuple(operand.strides[d] * dtype.itemsize for d in range(operand.rank))
    if operand.data is None or 0 in shape:
        return np.empty(shape, dtype)
    span = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = (ctypes.c_byte * span).from_address(operand.data)
    return np.ndarray(shape, dtype, memory, 0, strides)


@ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(HostOperand),
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)
def _dispatch(callback: bytes, payload: bytes, operands: Any, inputs: int, outputs: int, message: int) -> int:
    try:
        arrays = [_array(operands[i]) for i in range(inputs + outputs)]
        resolve(callback.decode())(payload.decode(), arrays[:inputs], arrays[inputs:])
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip().encode()[: _MESSAGE_BYTES - 1]
        ctypes.memmove(message, text + b"\0", len(text) + 1)
        return 1
    return 0


def dispatcher_address() -> int:
    """Return the address of the C function that ``src/host_call.cpp`` calls."""
    return ctypes.cast(_dispatch, ctypes.c_void_p).value or 0


def emit_call(
    graph: Graph,
    callback: str,
    payload: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    sizes: Sequence[Dim] = (),
) -> str:
    """Return C++ that calls ``callback`` with ``payload`` over the operands (connector -> array), in their order."""
    rows = []
    for connector, name in (*inputs.items(), *outputs.items()):
        kind = literal(types.name_of(graph.dtype(name)))
        rows.append(f"{{{connector}, {kind}, {braces(graph.shape(name))}, {braces(graph.strides(name))}}}")
    input_count, declared = len(inputs), ""
    if sizes:
        rows.insert(input_count, f'{{host_sizes, "int64", {{{len(sizes)}}}, {{1}}}}')
        input_count, declared = input_count + 1, f"int64_t host_sizes[] = {{{', '.join(map(whole, sizes))}}}; "
    call = f"daceopt::host_call({literal(callback)}, {literal(payload)}, {{{', '.join(rows)}}}, {input_count});"
    return f"{{ {declared}{call} }}"


def operands(graph: Graph, node: HostCall) -> tuple[dict[str, str], dict[str, str]]:
    """Connector -> array of what ``node`` reads, and of what it writes, in the order of the call."""
    reads, writes = graph.reads(node), graph.writes(node)
    return (
        {f"In{i}": reads[f"In{i}"] for i in range(len(reads))},
        {f"Out{i}": writes[f"Out{i}"] for i in range(len(writes))},
    )


class Host(Library):
    """Implements ``HostCall`` nodes; always there."""

    name: ClassVar[str] = "host"

    def available(self) -> Missing | None:
        """Never missing: generated code runs inside of Python."""
        return None

    def version(self) -> str:
        return __version__

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any HostCall whose callback can be imported."""
        if not isinstance(node, HostCall):
            return "for host calls only"
        try:
            resolve(node.callback)
        except RunError as error:
            return str(error)
        return None

    def emit(self, node: DenseNode, graph: Graph) -> str:
        assert isinstance(node, HostCall)
        return emit_call(graph, node.callback, node.payload, *operands(graph, node), node.sizes)

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """Our header and source; the interpreter is found in the process."""
        return requirements()


def requirements() -> Requirements:
    """Return what the statements of ``emit_call`` need."""
    return support("host_call.cpp", header="host_call.h", flags=Flags(link=("-ldl",)))


register(Host())
