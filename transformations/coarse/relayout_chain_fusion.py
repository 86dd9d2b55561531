"""Chains of reshapes and transpositions as the fewest that say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, ClassVar

import numpy as np

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.graph.operator import Operator
from daceopt.ir.graph.operators import is_op, operator_writing
from daceopt.ir.scalar.dims import Dim
from daceopt.passes.transform import NearMiss, Site, Transformation, sweep

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_STEPS = (*_RESHAPES, "Transpose")
Step = tuple[str, tuple[int, ...]]  # "Reshape" and a shape, or "Transpose" and an order of axes


@dataclass(frozen=True)
class RelayoutChainFusion(Transformation):
    """Write a chain of reshapes and transpositions as at most one reshape, one transposition and one reshape.

    before:  y = Reshape(Transpose(Reshape(Transpose(x, [0, 2, 1, 3]), [b, s, h*d]), [0, 2, 1]), [b, h, d, s])
    after:   y = Transpose(x, [0, 1, 3, 2])

    Transpositions are views; a reshape of one is a copy, of which none is left that the whole does not need.
    """

    level: ClassVar[str] = "coarse"

    def match_at(self, graph: Graph, node: Node) -> Iterable[Site | NearMiss]:
        chain = _chain(graph, node)
        if len(chain) < 2:
            return
        source, result = graph.operand(chain[0], 0), graph.result(node, 0)
        if not _is_known(graph.shape(source)) or 0 in graph.shape(source):
            return
        steps = _shortest(graph, chain, source)
        if steps is None:
            yield NearMiss(node, f"the extents of {source} and those in between do not divide one another")
        elif len(steps) < len(chain) and not (not steps and graph.is_kept(result)):
            yield Site(graph, (node, *chain[:-1]), {"steps": steps, "source": source})

    def apply(self, site: Site) -> None:
        graph, (node, *_) = site.graph, site.nodes
        result, above = graph.result(node, 0), graph.producer(graph.operand(node, 0))
        graph.remove(node)
        if not site["steps"]:
            graph.replace_uses(result, site["source"])
        name = site["source"]
        for k, (kind, order) in enumerate(site["steps"]):
            last = k == len(site["steps"]) - 1
            shape = order if kind == "Reshape" else tuple(graph.shape(name)[a] for a in order)
            out = result if last else graph.add_array("relayout", shape, graph.dtype(result))
            _add(graph, kind, order, name, out)
            name = out
        sweep(graph, [above])


def _chain(graph: Graph, node: Node) -> list[Operator]:
    """The relayouts that end with ``node``, first to last; those before it have no other reader."""
    if not is_op(node, *_STEPS):
        return []
    chain = [node]
    while True:
        name = graph.operand(chain[0], 0)
        above = operator_writing(graph, name, *_STEPS)
        if above is None or graph.is_kept(name) or len(graph.all_consumers(name)) > 1:
            return chain
        if not _is_known(graph.shape(name)):
            return chain
        chain.insert(0, above)


def _is_known(shape: Sequence[Dim]) -> bool:
    return all(isinstance(n, int) for n in shape)


def _add(graph: Graph, kind: str, order: tuple[int, ...], name: str, out: str) -> None:
    if kind == "Transpose":
        graph.add_operator("Transpose", [name], [out], {"perm": list(order)})
        return
    stated = graph.add_constant("shape", np.asarray(order, np.int64))
    graph.add_operator("Reshape", [name, stated], [out], {"allowzero": int(0 in order)})


@dataclass
class _Factors:
    """The extents of an array as factors, in the order of its elements: ``first`` before the chain, ``now`` after it.

    Extents of 1 have none.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    first: list[int] = field(default_factory=list)
    now: list[int] = field(default_factory=list)
    numbers: Any = field(default_factory=count)

    @classmethod
    def of(cls, shape: Sequence[int]) -> _Factors:
        factors = cls()
        for n in shape:
            if n != 1:
                factors.sizes[next(factors.numbers)] = n
        factors.first, factors.now = [*factors.sizes], [*factors.sizes]
        return factors

    def divide(self, shape: Sequence[int]) -> list[list[int]] | None:
        """The factors of each extent of ``shape``, split where need be; None where they do not divide."""
        groups: list[list[int]] = []
        at = 0
        for extent in shape:
            group: list[int] = []
            while extent != 1:
                own = self.sizes[self.now[at]]
                if own > extent:
                    if own % extent:
                        return None
                    self._split(self.now[at], extent)
                elif extent % own:
                    return None
                group.append(self.now[at])
                extent //= self.sizes[self.now[at]]
                at += 1
            groups.append(group)
        return groups

    def _split(self, factor: int, outer: int) -> None:
        """Two factors in the place of one, the first of which has the size ``outer``."""
        inner = next(self.numbers)
        self.sizes[factor], self.sizes[inner] = outer, self.sizes[factor] // outer
        for order in (self.first, self.now):
            order.insert(order.index(factor) + 1, inner)

    def size(self, group: Sequence[int]) -> int:
        return prod(self.sizes[f] for f in group)

    def divide_at_first(self, shape: Sequence[int]) -> list[list[int]]:
        """The factors of each extent before the chain."""
        rest = iter(self.first)
        groups: list[list[int]] = []
        for extent in shape:
            group: list[int] = []
            while self.size(group) != extent:
                group.append(next(rest))
            groups.append(group)
        return groups

    def runs(self) -> list[list[int]]:
        """The factors now, those together that stood together before."""
        place = {f: k for k, f in enumerate(self.first)}
        runs: list[list[int]] = []
        for f in self.now:
            if runs and place[f] == place[runs[-1][-1]] + 1:
                runs[-1].append(f)
            else:
                runs.append([f])
        return runs


def _shortest(graph: Graph, chain: Sequence[Operator], source: str) -> list[Step] | None:
    """The fewest steps that do what the chain does; None where extents do not divide."""
    shape = [int(n) for n in graph.shape(source)]
    factors = _Factors.of(shape)
    for node in chain:
        before = [int(n) for n in graph.shape(graph.operand(node, 0))]
        groups = factors.divide(before)
        if groups is None:
            return None
        if node.op_type == "Transpose":
            perm = node.attribute("perm") or range(len(before))[::-1]
            factors.now = [f for p in perm for f in groups[p]]
    result = [int(n) for n in graph.shape(graph.result(chain[-1], 0))]
    if factors.divide(result) is None:
        return None
    return _steps(factors, shape, result)


def _steps(factors: _Factors, shape: list[int], result: list[int]) -> list[Step]:
    if factors.now == factors.first:
        return [] if shape == result else [("Reshape", tuple(result))]
    groups = factors.divide_at_first(shape)
    perm = _order_of(groups, factors.now)
    steps: list[Step] = []
    if perm is None:
        runs = factors.runs()
        groups = sorted(runs, key=lambda run: factors.first.index(run[0]))
        shape, perm = [factors.size(run) for run in groups], [groups.index(run) for run in runs]
        steps.append(("Reshape", tuple(shape)))
    perm = _with_ones(shape, perm, result)
    steps.append(("Transpose", tuple(perm)))
    return steps if [shape[k] for k in perm] == result else [*steps, ("Reshape", tuple(result))]


def _order_of(groups: list[list[int]], now: list[int]) -> list[int] | None:
    """The order in which whole groups are now; None where one was taken apart."""
    first = {group[0]: k for k, group in enumerate(groups) if group}
    order = [first[f] for f in now if f in first]
    return order if [f for k in order for f in groups[k]] == now else None


def _with_ones(shape: list[int], perm: list[int], result: list[int]) -> list[int]:
    """The order of axes with those of extent 1 where ``result`` has them, if it has as many, or else at the end."""
    single = [k for k, n in enumerate(shape) if n == 1]
    if len(result) != len(shape) or result.count(1) != len(single):
        return [*perm, *single]
    axes, ones = iter(perm), iter(single)
    return [next(ones) if n == 1 else next(axes) for n in result]
