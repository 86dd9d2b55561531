"""Einsum: operands are taken pair by pair, each pair one Contraction over views."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.operands import require
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ops.core.registry import NUMBERS, Names, Operator, lowering, present, supports
from daceopt.ops.families.contraction import integer_matmul

Term = tuple[str, str]  # array, labels of its dimensions


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Labels of each operand and of the result; an ellipsis becomes labels that the equation does not use."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    spare = [c for c in ascii_letters if c not in equation]
    width = max((rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks) if "..." in t), default=0)
    hidden = "".join(spare[:width])
    full = [_open(t, hidden[width - (rank - len(t.replace("...", ""))) :]) for t, rank in zip(terms, ranks)]
    if not arrow:
        labels = [c for t in terms for c in t.replace("...", "")]
        right = ("..." if width else "") + "".join(sorted(c for c in set(labels) if labels.count(c) == 1))
    return full, _open(right, hidden)


def _open(term: str, hidden: str) -> str:
    return term.replace("...", hidden)


@lowering("Einsum", types=NUMBERS)
def einsum(b: Builder, node: Operator, inputs: Names, outputs: Names) -> None:
    arrays, out = present(inputs), require(outputs, 0)
    labels, result = parse(node.attribute("equation"), [len(b.graph.shape(a)) for a in arrays])
    sizes = _sizes(b.graph, arrays, labels)
    terms = [_squeeze(b, *_diagonal(b, a, t), sizes) for a, t in zip(arrays, labels)]
    while len(terms) > 1:
        rest = set(result).union(*(t for _, t in terms[2:]))
        terms[:2] = [_pair(b, terms[0], terms[1], rest, sizes)]
    array, own = _sum(b, terms[0], set(result))
    b.reshape(b.transpose(array, [own.index(c) for c in result if c in own]), b.graph.shape(out), out=out)


def _sizes(graph: Graph, arrays: Sequence[str], labels: Sequence[str]) -> dict[str, Dim]:
    sizes: dict[str, Dim] = {}
    for array, term in zip(arrays, labels):
        for c, extent in zip(term, graph.shape(array)):
            if sizes.get(c, 1) == 1:
                sizes[c] = extent
    return sizes


def _diagonal(b: Builder, array: str, labels: str) -> Term:
    """The elements at which dimensions with one label have one index."""
    own = "".join(dict.fromkeys(labels))
    if own == labels:
        return array, labels
    shape = [b.graph.shape(array)[labels.index(c)] for c in own]
    out = b.graph.add_array("diagonal", shape, b.graph.dtype(array))
    reads = {"x": (array, lambda *i: tuple(i[own.index(c)] for c in labels))}
    b.map(shape, reads, {"y": (out, lambda *i: i)}, lambda i, x: x, label="diagonal")
    return out, own


def _squeeze(b: Builder, array: str, term: str, sizes: dict[str, Dim]) -> Term:
    """Drop dimensions of extent 1 that are larger elsewhere: they broadcast."""
    unit_axes = [k for k, (c, n) in enumerate(zip(term, b.graph.shape(array))) if n == 1 and sizes[c] != 1]
    letters = "".join(c for k, c in enumerate(term) if k not in unit_axes)
    return (b.squeeze(array, unit_axes), letters) if unit_axes else (array, term)


def _sum(b: Builder, term: Term, needed: set[str]) -> Term:
    """Sum over the labels that nothing else needs."""
    array, labels = term
    axes = [k for k, c in enumerate(labels) if c not in needed]
    if not axes:
        return term
    return b.reduce("sum", None, array, axes=axes, dtype=b.graph.dtype(array)), "".join(
        c for c in labels if c in needed
    )


def _pair(b: Builder, first: Term, second: Term, rest: set[str], sizes: dict[str, Dim]) -> Term:
    """Contract two operands: shared labels that ``rest`` needs are batch dimensions, other shared ones are summed."""
    x, left = _sum(b, first, rest | set(second[1]))
    y, right = _sum(b, second, rest | set(left))
    batch = [c for c in left if c in right and c in rest]
    inner = [c for c in left if c in right and c not in rest]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    a = _matrix(b, x, left, batch, rows, inner, sizes)
    c = _matrix(b, y, right, batch, inner, columns, sizes)
    product = b.matmul(a, c) if types.is_float(b.graph.dtype(x)) else _integers(b, a, c)
    labels = [*batch, *rows, *columns]
    return b.reshape(product, [sizes[n] for n in labels]), "".join(labels)


def _matrix(
    b: Builder, x: str, labels: str, batch: list[str], rows: list[str], columns: list[str], sizes: dict[str, Dim]
) -> str:
    """``x`` as [batch..., rows, columns], the rows' and the columns' dimensions merged."""
    x = b.transpose(x, [labels.index(c) for c in (*batch, *rows, *columns)])
    return b.reshape(x, [*(sizes[c] for c in batch), _product(rows, sizes), _product(columns, sizes)])


def _product(labels: list[str], sizes: dict[str, Dim]) -> Dim:
    result: Dim = 1
    for c in labels:
        result = dim(result * sizes[c])
    return result


def _integers(b: Builder, a: str, c: str) -> str:
    shape = (*b.graph.shape(a)[:-1], b.graph.shape(c)[-1])
    return integer_matmul(b, a, c, b.graph.add_array(b.label, shape, b.graph.dtype(a)))


@supports("Einsum")
def why_not_einsum(graph: Graph, node: Operator) -> str | None:
    equation = node.attribute("equation")
    arrays = present(graph.inputs_of(node))
    labels, result = parse(equation, [len(graph.shape(a)) for a in arrays])
    for array, term in zip(arrays, labels):
        repeated = [(c, n) for c, n in zip(term, graph.shape(array)) if term.count(c) > 1]
        if len({n for _, n in repeated}) > len({c for c, _ in repeated}):
            return f"equation {equation!r} repeats a label of operand {term!r} whose extents differ"
    if len(set(result)) != len(result):
        return f"equation {equation!r} repeats a label of the result"
    if set(result) - set("".join(labels)):
        return f"equation {equation!r} has a label that no operand has"
    return None
