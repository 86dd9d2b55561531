"""The sub-graphs of APOLLO's figures (Zhao et al., MLSys 2022), as its text describes them.

The figures themselves are drawings; what the text does not say (which operators stand in BERT's sub-graphs of figures 5
and 6) is taken from BERT: normalizations and softmax of its training step, its gradients' sums, its optimizer's checks
and updates, in small. ``python -m tests.transformations.partition.figures`` writes the golden files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import scalar
from daceopt.ir.text.render import render
from daceopt.transformations.partition.aggregation import Aggregation
from daceopt.transformations.partition.cluster_extraction import ClusterExtraction
from daceopt.transformations.partition.memory_stitching import MemoryStitching
from tests.transformations.graphs import Net
from tests.transformations.lowered import finish, start

ROWS, COLUMNS = 16, 32


def figure_3() -> Graph:
    """Figure 3(a): two primitive operators, then LogSoftMax by formula (1): a reduction and a subtraction."""
    graph, b, (x, bias) = start((ROWS, COLUMNS), (ROWS, COLUMNS))
    first = b.elementwise(sympy.tanh, x)
    second = b.elementwise(lambda v, w: v + w, first, bias)
    total = b.reduce("sum", sympy.exp, second, axes=[1], keepdims=True)
    return finish(graph, b.elementwise(lambda v, s: v - sympy.log(s), second, total))


def figure_3_with_boundary() -> Graph:
    """The same with LogSoftMax as one compound operator."""
    net = Net(x=(ROWS, COLUMNS), bias=(ROWS, COLUMNS))
    return net.done(net.op("LogSoftmax", net.op("Add", net.op("Tanh", net.x), net.bias), axis=1))


def figure_4() -> Graph:
    """Figure 4: a vector is computed, reshaped to a matrix, and multiplied with another one; more follows."""
    graph, b, (v, w, m) = start((ROWS * COLUMNS,), (ROWS * COLUMNS,), (ROWS, COLUMNS))
    vector = b.elementwise(lambda s, t: s * t, b.elementwise(sympy.exp, v), w)
    product = b.elementwise(lambda s, t: s * t, b.reshape(vector, (ROWS, COLUMNS)), m)
    return finish(graph, b.elementwise(sympy.tanh, b.elementwise(lambda s: s + 1, product)))


def figure_5a() -> Graph:
    """Softmax over attention scores with a mask."""
    graph, b, (scores, mask) = start((ROWS, COLUMNS), (ROWS, COLUMNS))
    masked = b.elementwise(lambda s, m: s / 8 + m, scores, mask)
    top = b.reduce("max", None, masked, axes=[1], keepdims=True)
    e = b.elementwise(lambda s, t: sympy.exp(s - t), masked, top)
    total = b.reduce("sum", None, e, axes=[1], keepdims=True)
    return finish(graph, b.elementwise(lambda s, t: s / t, e, total))


def figure_5b() -> Graph:
    """Bias, residual and layer normalization: two reductions along the rows."""
    graph, b, (x, bias, residual, scale, shift) = start(
        (ROWS, COLUMNS), (1, COLUMNS), (ROWS, COLUMNS), (1, COLUMNS), (1, COLUMNS)
    )
    h = b.elementwise(lambda v, w: v + w, x, bias)
    h = b.elementwise(lambda v, w: v + w, h, residual)
    mean = b.reduce("sum", lambda v: v / COLUMNS, h, axes=[1], keepdims=True)
    centred = b.elementwise(lambda v, m: v - m, h, mean)
    variance = b.reduce("sum", lambda v: v * v / COLUMNS, centred, axes=[1], keepdims=True)
    deviation = b.elementwise(lambda v: 1 / sympy.sqrt(v + sympy.Rational(1, 100)), variance)
    normal = b.elementwise(lambda v, d: v * d, centred, deviation)
    return finish(graph, b.elementwise(lambda v, s, t: v * s + t, normal, scale, shift))


def figure_5c() -> Graph:
    """The gradient of a softmax behind a scaling: the sum of each row goes back into it."""
    graph, b, (y, dy) = start((ROWS, COLUMNS), (ROWS, COLUMNS))
    weighted = b.elementwise(lambda v, g: v * g, y, dy)
    total = b.reduce("sum", None, weighted, axes=[1], keepdims=True)
    dx = b.elementwise(lambda v, g, t: v * (g - t), y, dy, total)
    return finish(graph, b.elementwise(lambda v: v / 8, dx))


def figure_6a() -> Graph:
    """Multi-head: one array and several branches that read it, which no rule makes one."""
    graph, b, (x,) = start((ROWS, COLUMNS))
    head = b.elementwise(sympy.tanh, x)
    rows = b.reduce("sum", None, head, axes=[1])
    columns = b.reduce("sum", lambda v: v * v, head, axes=[0])
    turned = b.copy(b.transpose(head, [1, 0]))
    return finish(graph, head, rows, columns, b.elementwise(lambda v: v * 2, turned))


def figure_6b() -> Graph:
    """Two branches that meet in a multiplication, and two that are independent of them."""
    graph, b, names = start((1,), (COLUMNS,), (ROWS,), (ROWS, COLUMNS))
    step, rate, decay, other = names
    left = b.elementwise(lambda v: 1 - sympy.exp(v), step)
    right = b.reduce("sum", lambda v: v * v, rate, axes=[0], keepdims=True)
    product = b.elementwise(lambda v, w: v * w, left, right)
    return finish(graph, product, b.elementwise(sympy.exp, decay), b.reduce("max", None, other, axes=[1]))


def figure_6c(branches: int = 7) -> Graph:
    """Each of seven branches cleans a scalar that the tail adds up (``addn``, ``add``), and has a sum of its own."""
    graph, b, names = start((), *((ROWS + k,) for k in range(branches)))
    start_value, *arrays = names
    tails: list[str] = []
    sums: list[str] = []
    for array in arrays:
        first = b.reduce("sum", lambda v: scalar.select(scalar.isnan(v), 0, v), array, axes=[0])
        tails.append(b.elementwise(lambda v: scalar.maximum(v, 0), first))
        sums.append(b.reduce("max", None, array, axes=[0]))
    total = b.elementwise(lambda *values: sympy.Add(*values), *tails)
    return finish(graph, b.elementwise(lambda v, w: v + w, total, start_value), *sums)


FIGURES: dict[str, Any] = {
    "3": figure_3,
    "4": figure_4,
    "5a": figure_5a,
    "5b": figure_5b,
    "5c": figure_5c,
    "6a": figure_6a,
    "6b": figure_6b,
    "6c": figure_6c,
}


def partitioned(graph: Graph) -> str:
    """The partition of a graph by Tables 1 and 2, as reports say it, and the graph after it; ``graph`` is changed."""
    lines = []
    for step in (ClusterExtraction(), Aggregation(), MemoryStitching()):
        outcome = step.run(graph)
        lines += [f"{step}", *(f"  {site}" for site in outcome.sites), *(f"  not {m}" for m in outcome.near_misses)]
    return "\n".join([*lines, "", render(graph)])


if __name__ == "__main__":
    for name, figure in FIGURES.items():
        (Path(__file__).parent / "golden" / f"figure_{name}.txt").write_text(partitioned(figure()), encoding="utf-8")
