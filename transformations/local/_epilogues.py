"""What a product or a convolution can do to its result in registers: found in a kernel, and moved into the node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import dace
import numpy as np
import sympy

from daceopt.errors import Unsupported
from daceopt.ir.fusion.relations import Relation, flow
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.nodes.blocked import BLOCK
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.scalar import scalar
from daceopt.ir.scalar.dims import Dim, Shape, is_dense
from daceopt.ops.families.strided import takes

_VECTORS = {"B": "bias", "S": "scale", "T": "shift", "Bias": "bias"}  # connectors of a number per channel


@dataclass(frozen=True)
class Epilogue:
    """``activation((y + B) * S + T + residual)`` of the product ``y``.

    ``vectors``: what each connector of a number per channel gets, as scalar code over what the kernel reads;
    ``residual``: an array; ``slope``: of a relu below 0, ``ceiling``: the most that it gives. ``others``: products that
    get epilogues of their own, so that theirs is the residual.
    """

    vectors: Mapping[str, sympy.Expr] = field(default_factory=dict)
    residual: str | None = None
    activation: str | None = None
    slope: float = 0.0
    ceiling: float = math.inf
    others: tuple[tuple[Any, Epilogue], ...] = ()


def is_product(node: Node) -> bool:
    """May ``node`` get an epilogue?"""
    return isinstance(node, (Contraction, Convolution)) and node.activation is None


def reader_of(graph: Graph, node: Node) -> KernelNode | None:
    """The kernel that alone reads the product of ``node``, which a library would do in registers."""
    if not is_product(node) or (isinstance(node, Convolution) and graph.options.target != "cpu"):
        return None  # elsewhere epilogues of convolutions are passes of their own
    product = graph.writes(node)["Y"]
    readers = graph.all_consumers(product)
    alone = len(readers) == 1 and not graph.is_kept(product) and isinstance(readers[0], KernelNode)
    return readers[0] if alone else None


def epilogue_of(graph: Graph, node: Node, kernel: Kernel) -> Epilogue | str:
    """What ``kernel``, the only reader of the product of ``node``, computes; or why that is no epilogue. The kernel may
    be a planned one."""
    product = graph.writes(node)["Y"]
    if graph.views_of(product):
        return "the product is read through a view"
    if len(kernel.stages) != 1 or len(kernel.stages[0].writes) != 1:
        return "the reader has several stages or results"
    stage = kernel.stages[0]
    write = next(iter(stage.writes.values()))
    fixed = graph.is_part(write.array) or isinstance(node, Contraction)  # convolutions copy what they do not write
    if fixed and not takes(node, graph.shape(write.array), graph.strides(write.array)):
        return f"{write.array} has other strides than {node.label} writes"
    reading = _Reading(graph, kernel, stage, write)
    own = [c for c, a in stage.reads.items() if a.array == product]
    mixed = write.wcr or graph.dtype(write.array) != graph.dtype(product)
    if mixed or len(own) != 1 or not reading.is_image(own[0]):
        return "the reader reduces, converts or reorders the product"
    types = [a.dtype for a in stage.assignments] + [graph.dtype(a.array) for a in stage.reads.values()]
    if any(t != graph.dtype(product) for t in types):
        return "the reader mixes element types"
    relu = _Relu.of(reading.value)
    if relu is None:
        return reading.match(node, reading.value)
    is_plain = relu.slope == 0 and relu.ceiling == math.inf
    if not (is_plain or (reading.scales(node) and is_dense(graph.shape(write.array), graph.strides(write.array)))):
        return f"{node.label} applies no relu with a slope or a ceiling"
    epilogue = reading.match(node, relu.argument)
    if isinstance(epilogue, Epilogue):
        return replace(epilogue, activation="relu", slope=relu.slope, ceiling=relu.ceiling)
    return epilogue


def absorb(graph: Graph, node: Node, reader: KernelNode, epilogue: Epilogue, **attributes: object) -> Node:
    """Let ``node`` do what ``reader`` does; returns the node that is in its place, with ``attributes``."""
    kernel = reader.kernel
    out = graph.result(reader, 0)
    reads = kernel.stages[0].reads
    others = [(other, graph.writes(other)["Y"], own) for other, own in epilogue.others]
    attributes |= {"slope": epilogue.slope} if epilogue.slope else {}
    attributes |= {"ceiling": epilogue.ceiling} if epilogue.ceiling < math.inf else {}
    twin = _replace(graph, (node, reader), epilogue, reads, out, activation=epilogue.activation, **attributes)
    for other, product, own in others:
        _replace(graph, (other,), own, reads, product)
    return twin


def _replace(
    graph: Graph,
    members: tuple[Node, ...],
    epilogue: Epilogue,
    stage_reads: Mapping[str, Access],
    out: str,
    **attributes: object,
) -> Node:
    """Put the first of ``members`` with the epilogue ``found`` in the place of all; it writes ``out``."""
    node = members[0]
    reads = graph.reads(node)
    own_attributes = {p: getattr(node, p) for p in kept_attributes(node)}
    graph.take_out(members)
    reads |= _vectors(graph, node, epilogue.vectors, stage_reads, reads)
    if epilogue.residual is not None:
        reads[_residual_connector(node)] = epilogue.residual
    twin = type(node)(node.label, inputs=list(reads), outputs=["Y"], **(own_attributes | attributes))
    graph.add_node(twin, reads, {"Y": out})
    return twin


def _vectors(
    graph: Graph,
    node: Node,
    expressions: Mapping[str, sympy.Expr],
    reads: Mapping[str, Access],
    held: Mapping[str, str],
) -> dict[str, str]:
    """The array of each vector: one that is read as it is, or computed of such."""
    bare = {c: reads[str(e)].array for c, e in expressions.items() if str(e) in reads and c not in held}
    vectors = {c: name for c, name in bare.items() if len(graph.shape(name)) == 1}
    computed = {c: e for c, e in expressions.items() if c not in vectors}
    if not computed:
        return vectors
    used = {str(s) for e in computed.values() for s in e.free_symbols}
    arrays = {c: reads[c].array for c in reads if c in used}
    arrays |= {f"own_{c}": held[c] for c in computed if c in held}  # a bias that the node had before: both are added
    size = graph.size(next(iter(arrays.values())))
    names = {
        c: graph.add_array(f"{node.label}_{_VECTORS[c]}", (size,), graph.dtype(next(iter(arrays.values()))))
        for c in computed
    }

    def values(_: tuple[sympy.Symbol, ...], **symbols: sympy.Expr) -> dict[str, sympy.Expr]:
        return {f"out_{c}": e + symbols.get(f"own_{c}", 0) for c, e in computed.items()}

    operands = {c: (name, partial(_at, graph.shape(name))) for c, name in arrays.items()}
    results = {f"out_{c}": (name, partial(_at, (size,))) for c, name in names.items()}
    Builder(graph).map((size,), operands, results, values, f"{node.label}_epilogue")
    return vectors | names


def _at(shape: Shape, channel: sympy.Symbol) -> tuple[Dim, ...]:
    """The index of a channel's number in an array of ``shape``."""
    own = _long_dimension(shape)
    return tuple(channel if d == own else 0 for d in range(len(shape)))


def _long_dimension(shape: Shape) -> int | None:
    """The only dimension that is longer than 1; None where there are none or several."""
    longer = [d for d, n in enumerate(shape) if n != 1]
    return longer[0] if len(longer) == 1 else None


def kept_attributes(node: Node) -> tuple[str, ...]:
    """What a product or a convolution keeps when its operands change."""
    return (
        ("alpha",) if isinstance(node, Contraction) else ("strides", "pads", "dilations", "group", "layout", "packed")
    )


def _residual_connector(node: Node) -> str:
    return "C" if isinstance(node, Contraction) else "Z"


class _Reading:
    """A kernel of one stage, and how it reads what."""

    def __init__(self, graph: Graph, kernel: Kernel, stage: Stage, write: Access):
        self._graph, self._kernel, self._stage, self._write = graph, kernel, stage, write
        values: dict[sympy.Symbol, sympy.Expr] = {}
        for assignment in stage.assignments:
            values[assignment.symbol] = assignment.expr.xreplace(values)
        self.value = self._bare(next(v for s, v in values.items() if str(s) in stage.writes))

    def _bare(self, value: sympy.Expr) -> sympy.Expr:
        """``value`` without a conversion to the type that it has."""
        target = scalar.cast_target(value)
        if target is None:
            return value
        reads = self._stage.reads
        kinds = {s: self._graph.dtype(reads[str(s)].array) for s in value.free_symbols if str(s) in reads}
        return value.args[0] if scalar.dtype_of(value.args[0], kinds) == target else value

    def is_image(self, connector: str) -> bool:
        """Is each element read for the one at its own index?"""
        graph, access = self._graph, self._stage.reads[connector]
        shape, out = graph.shape(access.array), graph.shape(self._write.array)
        return flow(self._kernel.extents, access.index, shape, self._write.index, out).is_equal

    def is_vector(self, node: Node, connector: str) -> bool:
        """Is it a number for each channel of the result (convolution), or for each place of its last dimension?"""
        graph, access = self._graph, self._stage.reads[connector]
        shape, out = graph.shape(access.array), graph.shape(self._write.array)
        own = _long_dimension(shape)
        if own is None or not graph.is_contiguous(access.array):
            return False
        if isinstance(node, Convolution) and "Y" in node.blocked_connectors(graph):
            _, channel, *_, inside = map(sympy.sympify, self._write.index)
            place = sympy.sympify(access.index[own])
            return bool(shape[own] == BLOCK * out[1] and sympy.expand(place - BLOCK * channel - inside) == 0)
        axis = len(out) - 1 if isinstance(node, Contraction) else 1
        way = flow(self._kernel.extents, access.index, shape, self._write.index, out)
        return way.dims[own] == Relation("bijective", axis)

    def match(self, node: Node, value: sympy.Expr) -> Epilogue | str:
        """``value`` as ``(product + B) * S + T + residual``, in the terms that ``node`` has left."""
        product = self._graph.writes(node)["Y"]
        symbol = next(c for c, a in self._stage.reads.items() if a.array == product)
        steps = _Steps.of(value, symbol)
        if steps is None:
            return "the reader is not a sum of the product, scaled or not, and other arrays"
        vectors = self._vectors(node, steps)
        if isinstance(vectors, str):
            return vectors
        return self._rest(node, vectors, steps)

    def _vectors(self, node: Node, steps: _Steps) -> dict[str, sympy.Expr] | str:
        """What is added to the product before it is scaled, and the factors."""
        if steps.factors == 1:
            return {}
        held = self._graph.reads(node).keys()
        if not self.scales(node) or held & {"S", "T", "Z"}:
            return f"{node.label} scales no result"
        vectors = {"S": steps.factors} | ({"B": steps.inner} if steps.inner != 0 else {})
        wrong = [e for e in vectors.values() if not self._is_of_vectors(node, e)]
        return f"{wrong[0]} is not a number per channel" if wrong else vectors

    def scales(self, node: Node) -> bool:
        """Does the library that computes ``node`` do more in registers than to add?"""
        graph = self._graph
        wide = all(graph.dtype(n) == dace.float32 for n in node.operands(graph).values())
        return isinstance(node, Convolution) and wide and graph.options.target == "cpu"

    def _is_of_vectors(self, node: Node, expr: sympy.Expr) -> bool:
        names = {str(s) for s in expr.free_symbols}
        return bool(names) and all(c in self._stage.reads and self.is_vector(node, c) for c in names)

    def _rest(self, node: Node, vectors: dict[str, sympy.Expr], steps: _Steps) -> Epilogue | str:
        """What is added last: numbers per channel, an image, or what another product is in its own epilogue."""
        held = self._graph.reads(node).keys()
        sums: list[sympy.Expr] = []
        images: list[sympy.Expr] = []
        for term in steps.added:
            (sums if self._is_of_vectors(node, term) else images).append(term)
        if sums:
            bare = len(sums) == 1 and str(sums[0]) in self._stage.reads
            first = next(c for c in _VECTORS if c in node.optional)  # the bias
            slot = first if steps.factors == 1 and first not in held and bare else "T"
            if slot in held or (slot == "T" and not self.scales(node)):
                return f"{sums[0]} is neither a bias nor a residual"
            vectors[slot] = sympy.Add(*sums)
        if not images:
            return Epilogue(vectors)
        if _residual_connector(node) in held:
            return f"{images[0]} is neither a bias nor a residual"
        if len(images) == 1 and self._is_plain_image(images[0]):
            return Epilogue(vectors, self._stage.reads[str(images[0])].array)
        return self._beside(node, vectors, sympy.Add(*images))

    def _is_plain_image(self, term: sympy.Expr) -> bool:
        return str(term) in self._stage.reads and self.is_image(str(term))

    def _beside(self, node: Node, vectors: dict[str, sympy.Expr], rest: sympy.Expr) -> Epilogue | str:
        """The rest as another product with an epilogue of numbers per channel."""
        for other, connector in self._products(node, rest):
            steps = _Steps.of(rest, connector)
            own = None if steps is None else self._vectors(other, steps)
            if steps is None or not isinstance(own, dict) or not own or steps.added:
                continue
            return Epilogue(vectors, self._stage.reads[connector].array, others=((other, Epilogue(own)),))
        return f"{rest} is neither a bias nor a residual"

    def _products(self, node: Node, rest: sympy.Expr) -> Iterator[tuple[sympy.Expr, str]]:
        graph = self._graph
        for connector in sorted(map(str, rest.free_symbols)):
            access = self._stage.reads.get(connector)
            other = None if access is None else graph.producer(access.array)
            if (
                access is None
                or other is None
                or other is node
                or not is_product(other)
                or reader_of(graph, other) is None
            ):
                continue
            if not graph.views_of(access.array) and self.is_image(connector):
                yield other, connector


@dataclass(frozen=True)
class _Steps:
    """``(symbol + inner) * factors + added[0] + ...``"""

    inner: sympy.Expr
    factors: sympy.Expr
    added: tuple[sympy.Expr, ...]

    @staticmethod
    def of(value: sympy.Expr, connector: str) -> _Steps | None:
        """``value`` in these steps, each once; None where it has other ones."""
        main, added = _split(sympy.Add, value, connector)
        scaled, factors = _split(sympy.Mul, main, connector)
        symbol, inner = _split(sympy.Add, scaled, connector)
        if symbol is None or str(symbol) != connector or not symbol.is_Symbol:
            return None
        if not factors:  # the sum was one sum
            return _Steps(sympy.S.Zero, sympy.S.One, (*added, *inner))
        return _Steps(sympy.Add(*inner), sympy.Mul(*factors), tuple(added))


def _split(
    kind: type[sympy.Expr], value: sympy.Expr | None, connector: str
) -> tuple[sympy.Expr | None, list[sympy.Expr]]:
    """The one argument of a sum or product that has the symbol, and the others."""
    if value is None:
        return None, []
    args = kind.make_args(value)
    having = [a for a in args if any(str(s) == connector for s in a.free_symbols)]
    return (having[0], [a for a in args if a is not having[0]]) if len(having) == 1 else (None, [])


class _Relu(NamedTuple):
    """What ``argument`` is above 0, and below 0 ``slope`` times that; at most ``ceiling``."""

    argument: sympy.Expr
    slope: float = 0.0
    ceiling: float = math.inf

    @staticmethod
    def of(value: sympy.Expr) -> _Relu | None:
        """``value`` as a relu, in a form that keeps NaN; the ceiling may be applied before or after."""
        outer = _Bounded.of(value)
        relu = _relu_of(outer.value)
        if relu is None or outer.compared not in (outer.value, relu.argument):
            return None
        inner = _Bounded.of(relu.argument)
        ceiling = min(outer.ceiling, inner.ceiling)
        if ceiling == math.inf:
            return relu
        if relu.slope or inner.compared != inner.value:
            return None
        return _Relu(inner.value, ceiling=ceiling)


def _relu_of(value: sympy.Expr) -> _Relu | None:
    if isinstance(value, scalar.maximum) and 0 in value.args:
        return next((_Relu(v) for v in value.args if v != 0), None)
    if not isinstance(value, scalar.select):
        return None
    condition, *ways = value.args
    if isinstance(condition, (scalar.le, scalar.lt)) and condition.args == (ways[1], 0) and ways[0] == 0:
        return _Relu(ways[1])
    if isinstance(condition, scalar.gt) and condition.args == (ways[0], 0):
        slope, applied = float(_ratio(ways[1], ways[0])), np.finfo(np.float32)  # by convolutions of float32
        if applied.smallest_subnormal <= slope <= applied.max:
            return _Relu(ways[0], slope)
    return None


class _Bounded(NamedTuple):
    """``value`` where ``compared`` is below ``ceiling``, a positive number; without a bound, that is infinite."""

    value: sympy.Expr
    compared: sympy.Expr
    ceiling: float = math.inf

    @staticmethod
    def of(value: sympy.Expr) -> _Bounded:
        if isinstance(value, scalar.minimum):
            for bound, other in (value.args, value.args[::-1]):
                if bound.is_number and bound.is_positive and bound.is_finite:
                    return _Bounded(other, other, float(bound))
        if isinstance(value, scalar.select) and isinstance(value.args[0], (scalar.ge, scalar.gt)):
            compared, bound = value.args[0].args
            _, high, low = value.args
            if bound == high and bound.is_number and bound.is_positive and bound.is_finite:
                return _Bounded(low, compared, float(bound))
        return _Bounded(value, value)


def _ratio(product: sympy.Expr, value: sympy.Expr) -> sympy.Expr:
    """The number c where ``product`` is c * ``value``, else 0; a number is multiplied with each term of a sum."""
    terms = {rest: factor for factor, rest in (t.as_coeff_Mul() for t in sympy.Add.make_args(product))}
    own, rest = sympy.Add.make_args(value)[0].as_coeff_Mul()
    ratio = terms.get(rest, sympy.S.Zero) / own
    return ratio if ratio * value == product else sympy.S.Zero


def why_no_epilogue(graph: Graph, node: Node, kernel: Kernel) -> str | None:
    """Why ``node`` cannot do what ``kernel``, the only reader of its product, does, exactly; None where it can."""
    epilogue = epilogue_of(graph, node, kernel)
    return epilogue if isinstance(epilogue, str) else why_inexact(node, epilogue)


def why_inexact(node: Node, epilogue: Epilogue) -> str | None:
    """Why ``node`` does not compute the epilogue for all numbers; None where it does."""
    if epilogue.activation and epilogue.slope == 0 and isinstance(node, Convolution):
        return "a relu inside of the convolution would turn NaN into 0, or -inf into NaN"
    return None


def extract(graph: Graph, node: Node, reader: KernelNode) -> Epilogue | str:
    """The epilogue that the kernel ``reader`` is, or why it is none."""
    try:
        return epilogue_of(graph, node, reader.kernel)
    except Unsupported as error:
        return str(error)
