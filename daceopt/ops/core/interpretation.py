"""Reference implementations of library nodes and operators for ``ir.interpreter``, in float64 throughout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interpret, interprets, run_node
from daceopt.ir.nodes import blocked, quantized
from daceopt.ir.nodes.library import (
    Contraction,
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    DenseNode,
    GroupedProduct,
    HostCall,
    IndexAdd,
    NanWatch,
    Pool,
    PoolBackward,
    narrow_type,
)
from daceopt.ir.nodes.quantized import QuantizedConvolution, QuantizedProduct
from daceopt.ir.scalar import types
from daceopt.ops.core import reference, registry

if TYPE_CHECKING:
    import torch


def _read(memory: Memory, node: Node) -> dict[str, np.ndarray]:
    arrays = {c: memory.array(n) for c, n in memory.graph.reads(node).items()}
    if isinstance(node, DenseNode) and (narrow := narrow_type(node, memory.graph)) is not None:
        arrays[node.weights] = arrays[node.weights].astype(memory.numpy_dtype(narrow))
    return {c: a.astype(np.float64) if a.dtype.kind in "fV" else a for c, a in arrays.items()}  # V: narrow floats


def _finish(value: np.ndarray, node: Node) -> np.ndarray:
    if node.activation != "relu":
        return value
    slope, ceiling = getattr(node, "slope", 0), getattr(node, "ceiling", np.inf)
    above = np.where(value <= 0, value * slope if slope else 0, value)
    return np.where(above > ceiling, ceiling, above)


@interprets("Contraction")
def _contraction(memory: Memory, node: Contraction) -> None:
    operands = _read(memory, node)
    with np.errstate(all="ignore"):
        y = node.alpha * np.matmul(operands["A"], operands["B"])
        y = y + operands.get("Bias", 0.0) + operands.get("C", 0.0)
    memory.store_sums(memory.graph.writes(node)["Y"], _finish(y, node))


@interprets("GroupedProduct")
def _grouped_product(memory: Memory, node: GroupedProduct) -> None:
    operands, out = _read(memory, node), memory.graph.writes(node)["Y"]
    a, b, y, start = operands["A"], operands["B"], np.zeros(memory.array(out).shape), 0
    for group, end in enumerate(operands["Ends"].astype(np.int64)):
        rows = slice(start, end)
        if node.inner:
            y[group] = a[rows].T @ b[rows]
        else:
            y[rows] = a[rows] @ b[group]
        start = end
    memory.store_sums(out, y)


# -------------------------------------------------------------------- convolution


def _convolve(node: Node, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    import torch

    rank = w.dim() - 2
    strides, dilations, begins, ends = node.window(rank)
    margins = [m for pair in zip(reversed(begins), reversed(ends)) for m in pair]
    function = getattr(torch.nn.functional, f"conv{rank}d")
    return function(torch.nn.functional.pad(x, margins), w, bias, strides, 0, dilations, node.group)


def _tensor(value: np.ndarray | None) -> torch.Tensor | None:
    import torch

    return None if value is None else torch.from_numpy(np.ascontiguousarray(value))


def _zeros(shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.zeros(shape, dtype=torch.float64, requires_grad=True)


def _read_images(memory: Memory, node: Node) -> dict[str, np.ndarray]:
    """Images in blocks as (N, C, spatial...)."""
    return _read(memory, node) | {
        c: blocked.unpack(memory.array(memory.graph.reads(node)[c]).astype(np.float64))
        for c in node.blocked_connectors(memory.graph) & memory.graph.reads(node).keys()
    }


def _store_image(memory: Memory, node: Node, connector: str, value: np.ndarray) -> None:
    packed = blocked.pack(value) if connector in node.blocked_connectors(memory.graph) else value
    memory.store_sums(memory.graph.writes(node)[connector], packed)


@interprets("Convolution")
def _convolution(memory: Memory, node: Convolution) -> None:
    operands = _read_images(memory, node)
    y = _convolve(node, _tensor(operands["X"]), _tensor(operands["W"]), _tensor(operands.get("B"))).numpy()
    scale, shift = (np.reshape(operands.get(c, n), (-1, *[1] * (y.ndim - 2))) for c, n in (("S", 1.0), ("T", 0.0)))
    _store_image(memory, node, "Y", _finish(y * scale + shift + operands.get("Z", 0.0), node))


@interprets("ConvolutionBackwardData")
def _convolution_data(memory: Memory, node: ConvolutionBackwardData) -> None:
    import torch

    operands, shape = _read_images(memory, node), blocked.shape_of(memory.graph, node, "dX")
    x = _zeros(tuple(map(memory.number, shape)))
    with torch.enable_grad():  # a program that is interpreted may itself be in a backward pass
        y = _convolve(node, x, _tensor(operands["W"]))
    _store_image(memory, node, "dX", torch.autograd.grad(y, x, _tensor(operands["dY"]))[0].numpy())


@interprets("ConvolutionBackwardWeights")
def _convolution_weights(memory: Memory, node: ConvolutionBackwardWeights) -> None:
    import torch

    operands, out = _read_images(memory, node), memory.graph.writes(node)
    w = _zeros(memory.array(out["dW"]).shape)
    with torch.enable_grad():
        y = _convolve(node, _tensor(operands["X"]), w)
    memory.store_sums(out["dW"], torch.autograd.grad(y, w, _tensor(operands["dY"]))[0].numpy())


# -------------------------------------------------------------------- 8-bit integers


def _requantize(memory: Memory, node: Node, sums: np.ndarray, operands: dict[str, np.ndarray], last: int) -> None:
    """Store what becomes of exact ``sums``; ``last``: the dimensions behind that of channels."""
    out = memory.graph.writes(node)["Y"]
    scale, shift = (np.reshape(v, (-1, *[1] * last)) for v in (operands["S"], operands.get("B", np.zeros(1))))
    y = sums * scale + shift
    dtype = memory.graph.dtype(out)
    if dtype in quantized.BYTES:
        y = np.clip(np.rint(y), *quantized.bounds(node, dtype)) + node.zero_y
        memory.store(out, y)
    else:
        memory.store_sums(out, y)


@interprets("QuantizedConvolution")
def _quantized_convolution(memory: Memory, node: QuantizedConvolution) -> None:
    operands = _read(memory, node)
    x, w = operands["X"].astype(np.float64) - node.zero_x, operands["W"].astype(np.float64)
    _requantize(memory, node, _convolve(node, _tensor(x), _tensor(w)).numpy(), operands, x.ndim - 2)


@interprets("QuantizedProduct")
def _quantized_product(memory: Memory, node: QuantizedProduct) -> None:
    operands = _read(memory, node)
    x, w = operands["X"].astype(np.float64) - node.zero_x, operands["W"].astype(np.float64) - node.zero_w
    sums = np.matmul(x, w)
    _requantize(memory, node, sums, operands, 0)


# -------------------------------------------------------------------- pooling


def _last(slices: Iterable[slice]) -> Any:
    """An index of the last dimensions."""
    return (Ellipsis, *slices)


class _Windows:
    """The padded image of a pool, and the elements that are at one place of every window."""

    def __init__(self, node: Pool | PoolBackward, size: tuple[int, ...], result: tuple[int, ...]):
        self.strides, self.dilations, self.begins, self.ends = node.window(len(node.kernel))
        self.size, self.result, self.kernel = size, result, list(node.kernel)
        reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(result, self.strides, self.kernel, self.dilations)]
        self.padded = [max(r, n + b + e) for r, n, b, e in zip(reach, size, self.begins, self.ends)]

    def image(self, lead: tuple[int, ...], fill: float) -> np.ndarray:
        return np.full((*lead, *self.padded), fill)

    def inner(self, image: np.ndarray) -> np.ndarray:
        return image[_last(slice(b, b + n) for b, n in zip(self.begins, self.size))]

    def with_pads(self, image: np.ndarray) -> np.ndarray:
        return image[_last(slice(0, b + n + e) for b, n, e in zip(self.begins, self.size, self.ends))]

    def offsets(self) -> list[tuple[int, ...]]:
        return list(product(*(range(k) for k in self.kernel)))

    def at(self, image: np.ndarray, offset: tuple[int, ...]) -> np.ndarray:
        steps = zip(offset, self.dilations, self.result, self.strides)
        return image[_last(slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, o, s in steps)]

    def counts(self, include_pad: bool) -> np.ndarray:
        """Elements of each window that are no padding (or none beyond the declared padding), at least 1."""
        ones = self.image((), 0.0)
        (self.with_pads(ones) if include_pad else self.inner(ones))[...] = 1
        return np.maximum(np.sum([self.at(ones, k) for k in self.offsets()], axis=0), 1)


@interprets("Pool")
def _pool(memory: Memory, node: Pool) -> None:
    x, out = _read(memory, node)["X"], memory.graph.writes(node)
    windows = _Windows(node, x.shape[2:], memory.array(out["Y"]).shape[2:])
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    image = windows.image(x.shape[:2], lowest if node.kind == "max" else 0.0)
    windows.inner(image)[...] = x
    parts = np.stack([windows.at(image, k) for k in windows.offsets()])
    if node.kind == "average":
        memory.store_sums(out["Y"], parts.sum(axis=0) / windows.counts(node.count_include_pad))
        return
    memory.store(out["Y"], parts.max(axis=0))
    if "Workspace" in out:
        memory.store(out["Workspace"], _positions(windows, parts))


def _positions(windows: _Windows, parts: np.ndarray) -> np.ndarray:
    """Where the maxima are in their windows: the first of equals, never in the padding; the last NaN."""
    ones = windows.image((), 0.0)
    windows.inner(ones)[...] = 1
    lead = (len(parts), *[1] * (parts.ndim - 1 - ones.ndim))
    inside = np.stack([windows.at(ones, k) for k in windows.offsets()])
    inside = inside.reshape(*lead, *inside.shape[1:]) > 0
    unknown = np.isnan(parts) if parts.dtype.kind == "f" else np.zeros(parts.shape, np.bool_)
    first = ((parts == parts.max(axis=0)) & inside).argmax(axis=0)
    return np.where(unknown.any(axis=0), len(parts) - 1 - unknown[::-1].argmax(axis=0), first)


@interprets("PoolBackward")
def _pool_backward(memory: Memory, node: PoolBackward) -> None:
    operands, out = _read(memory, node), memory.graph.writes(node)["dX"]
    dy = operands["dY"]
    windows = _Windows(node, memory.array(out).shape[2:], dy.shape[2:])
    image = windows.image(dy.shape[:2], 0.0)
    share = dy / windows.counts(node.count_include_pad) if node.kind == "average" else dy
    for number, offset in enumerate(windows.offsets()):
        part = windows.at(image, offset)
        part += share if node.kind == "average" else np.where(operands["Workspace"] == number, share, 0.0)
    memory.store(out, windows.inner(image))


# -------------------------------------------------------------------- indices, callbacks, operators


@interprets("IndexAdd")
def _index_add(memory: Memory, node: IndexAdd) -> None:
    operands, out = _read(memory, node), memory.graph.writes(node)["dW"]
    result = np.zeros(memory.array(out).shape)
    np.add.at(result, operands["Index"], operands["dY"])
    memory.store_sums(out, result)


@interprets("NanWatch")
def _nan_watch(memory: Memory, node: NanWatch) -> None:
    """Nothing is computed with short cuts here, so there is nothing to repeat."""
    memory.store(memory.graph.writes(node)["Seen"], np.zeros(1))


@interprets("HostCall")
def _host_call(memory: Memory, node: HostCall) -> None:
    reads, writes = memory.graph.reads(node), memory.graph.writes(node)
    inputs = [_own(memory, reads[c]) for c in sorted(reads, key=_number)]
    outputs = [_own(memory, writes[c]) for c in sorted(writes, key=_number)]
    if node.sizes:
        inputs.append(np.asarray([memory.number(size) for size in node.sizes], np.int64))
    module, _, name = node.callback.partition(":")
    getattr(import_module(module), name)(node.payload, inputs, outputs)
    for c, value in zip(sorted(writes, key=_number), outputs):
        memory.store(writes[c], value)


def _own(memory: Memory, name: str) -> np.ndarray:
    """A contiguous copy in the array's declared type."""
    return np.array(memory.array(name), types.to_numpy(memory.graph.dtype(name)), order="C")


def _number(connector: str) -> int:
    return int(connector.lstrip("InOut"))


@interprets("Operator")
def _operator(memory: Memory, node: Operator) -> None:
    """An operator that is not lowered yet: ONNX's reference evaluator or, where that fails, our lowering."""
    try:
        results = _by_evaluator(memory, node)
    except Unsupported:
        results = _by_lowering(memory, node)
    for name, value in zip(registry.present(memory.graph.outputs_of(node)), results):
        memory.store(name, value)


def _by_evaluator(memory: Memory, node: Operator) -> list[np.ndarray]:
    inputs = [None if n is None else np.array(memory.array(n)) for n in memory.graph.inputs_of(node)]
    with np.errstate(all="ignore"):
        return reference.compute(node, inputs)


def dissent(graph: Graph, inputs: Mapping[str, np.ndarray], tolerance: float) -> Operator | None:
    """The first operator of ``graph`` for which its lowering gives another result than ONNX's evaluator, by more than
    ``tolerance`` of the largest magnitude, both on the same values in float64."""
    memory = Memory(graph, inputs, reference=True)
    for node in graph.nodes():
        run_node(memory, node)
        if isinstance(node, Operator) and not _is_lowered_to_the_same(memory, node, tolerance):
            return node
    return None


def _is_lowered_to_the_same(memory: Memory, node: Operator, tolerance: float) -> bool:
    names = registry.present(memory.graph.outputs_of(node))
    for name, value in zip(names, _by_lowering(memory, node), strict=True):
        expected = np.asarray(memory.array(name), np.float64)
        margin = tolerance * float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        if not np.allclose(np.asarray(value, np.float64), expected, rtol=0.0, atol=margin, equal_nan=True):
            return False
    return True


def _by_lowering(memory: Memory, node: Operator) -> list[np.ndarray]:
    """Lower and execute a copy of ``node`` in a graph of its own, with the sizes of this execution."""
    source, graph = memory.graph, Graph("single")
    graph.source.opset = dict(source.source.opset)
    feeds: dict[str, np.ndarray] = {}

    def operand(name: str | None) -> str | None:
        if name is None or name in source.constants:
            return name and graph.add_constant("constant", source.constants[name])
        own = graph.add_input("operand", memory.array(name).shape, source.dtype(name))
        feeds[own] = memory.array(name)
        return own

    def result(name: str | None) -> str | None:
        return name and graph.add_array("result", memory.array(name).shape, source.dtype(name))

    names_in = [operand(n) for n in source.inputs_of(node)]
    names_out = [result(n) for n in source.outputs_of(node)]
    graph.add_operator(node.op_type, names_in, names_out, node.attributes, node.domain)
    for name in registry.present(names_out):
        graph.add_output(name)
    registry.lower_all(graph)
    values = interpret(graph, feeds, np.float64 if memory.reference else None)
    return [values[n] for n in graph.outputs]
