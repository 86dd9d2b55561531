"""Back-propagation through time: the gradient of a loop is a loop that counts down.

The forward loop collects its carried values as they are at the begin of each iteration; the backward loop computes the
body again from them, and carries their gradients. What an iteration reads as a slice at the counter gets its gradient
as a slice; what all iterations read gets a sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from daceopt.autodiff.differentiate import extend
from daceopt.autodiff.rules import Contributions, Grads, adjoint, preparation
from daceopt.errors import Unsupported
from daceopt.ir import types
from daceopt.ir.builder import Builder
from daceopt.ir.graph import Dim, Graph, dim
from daceopt.ir.region import Repeat, drop_operands, keep_states
from daceopt.ir.region_builder import LoopBuilder


def _check(node: Repeat) -> None:
    if node.trips is None or node.condition is not None or node.is_checked:
        raise Unsupported(f"{node.label} has no gradient: its number of iterations is not known before running")
    if any(s.extent is not None for s in node.stacked):
        raise Unsupported(f"{node.label} has no gradient: it runs instances of a sub-graph; differentiate before that")


@preparation(Repeat)
def prepare(b: Builder, node: Repeat) -> None:
    """Let the forward loop leave what the backward loop reads."""
    _check(node)
    keep_states(b.graph, node)


@adjoint(Repeat)
def repeat(b: Builder, node: Repeat, grads: Grads, wanted: Collection[str]) -> Contributions:
    """One iteration of the backward loop for each of the forward loop, in the opposite order."""
    _check(node)
    return _Backward(b, node, grads, wanted).run()


@dataclass(frozen=True)
class _Slice:
    """A captured array that the body reads at the counter only: ``view`` of it, for which ``input`` stands in."""

    array: str
    view: str
    input: str
    axis: int
    reverse: bool


class _Backward:
    def __init__(self, b: Builder, node: Repeat, grads: Grads, wanted: Collection[str]):
        self._b, self._graph, self._node, self._grads, self._wanted = b, b.graph, node, grads, wanted
        self._reads, self._writes = b.graph.reads(node), b.graph.writes(node)
        self._body = node.body.copy()
        self._carried = [k for k, c in enumerate(node.carried) if types.is_float(self._body.dtype(c.input))]
        first = len(node.carried)
        self._stacked = [first + k for k, s in enumerate(node.stacked) if self._writes.get(s.connector) in grads]

    def run(self) -> Contributions:
        node, body = self._node, self._body
        slices = list(self._expose_slices())
        sliced = {s.array for s in slices}
        whole = [n for n in self._captured() if n not in sliced]
        outputs = [body.outputs[k] for k in (*self._carried, *self._stacked)]
        states = [node.carried[k].input for k in self._carried]
        seeds, found = extend(body, outputs, [*states, *(s.input for s in slices), *whole])
        for name in body.outputs:
            body.desc(name).transient = name not in body.inputs
        body.outputs = []
        self._loop = LoopBuilder.adopt(self._graph, f"{node.label}_backward", node, body)
        self._replay(slices, outputs, seeds)
        return self._close(outputs, seeds, found, slices, whole)

    def _captured(self) -> list[str]:
        """Inputs of the body whose gradient is asked for."""
        captured = self._node.captures[0].items()
        return [n for n, c in captured if self._reads[c] in self._wanted and types.is_float(self._body.dtype(n))]

    def _expose_slices(self) -> Iterator[_Slice]:
        """Make inputs of the slices, so that they have gradients of their own."""
        body = self._body
        for name in self._captured():
            views = body.views_of(name)
            if len(views) != 1 or body.consumers(name):
                continue
            place = _place(body, name, views[0], self._node)
            if place is None:
                continue
            (view,) = views
            own = body.add_array("slice", body.shape(view), body.dtype(view), body.strides(view), transient=False)
            body.inputs.append(own)
            body.replace_uses(view, own)
            yield _Slice(name, view, own, *place)

    def _replay(self, slices: list[_Slice], outputs: list[str], seeds: dict[str, str]) -> None:
        """Read what the forward loop read in this iteration, and the gradients of its stacked outputs."""
        node, body, loop = self._node, self._body, self._loop
        for s in slices:
            body.replace_uses(s.input, s.view)
            body.inputs.remove(s.input)
        for c in node.carried:
            states = self._writes[node.states[c.input]]
            self._stand_in(c.input, loop.slice_of(states, 0, node.counter))
        for k, output in zip(self._stacked, outputs[len(self._carried) :]):
            stacked = node.stacked[k - len(node.carried)]
            assert node.limit is not None
            position = node.limit - 1 - node.counter if stacked.reverse else node.counter
            if output in seeds:
                gradient = self._grads[self._writes[stacked.connector]]
                self._stand_in(seeds[output], loop.slice_of(gradient, stacked.axis, position))

    def _stand_in(self, name: str, view: str) -> None:
        """Let ``view`` take the place of an input of the body."""
        body = self._body
        try:
            body.replace_uses(name, view)
        except ValueError:
            body.replace_uses(name, Builder(body, "slice").copy(view))
        body.inputs.remove(name)

    def _close(
        self,
        outputs: list[str],
        seeds: dict[str, str],
        found: dict[str, str | None],
        slices: list[_Slice],
        whole: list[str],
    ) -> Contributions:
        """Carry the gradients of states and of what all iterations read; stack those of slices."""
        node, graph, loop = self._node, self._graph, self._loop
        nexts: list[str] = []
        finals: list[str | None] = []
        result: Contributions = []
        for k, output in zip(self._carried, outputs):
            c = node.carried[k]
            if output not in seeds:
                continue
            start = self._writes.get(c.final) if c.final else None
            given = self._grads.get(start) if start else None
            loop.carry_as(seeds[output], given or self._zeros(graph, self._b, self._reads[c.initial]))
            nexts.append(found[c.input] or self._zeros(loop.graph, loop.b, seeds[output]))
            finals.append(self._final(self._reads[c.initial], result))
        for name in whole:
            if found[name] is not None:
                array = self._reads[node.captures[0][name]]
                total = loop.carry(self._zeros(graph, self._b, array, types.computed(graph.dtype(array))))
                nexts.append(loop.b.elementwise(lambda a, g: a + g, total, str(found[name]), label="accumulate"))
                finals.append(self._final(array, result, types.computed(graph.dtype(array))))
        stacked = []
        for s in slices:
            if found[s.input] is not None:
                array = self._reads[node.captures[0][s.array]]
                gradient = graph.add_array("slices_grad", graph.shape(array), graph.dtype(array))
                stacked.append((str(found[s.input]), gradient, s.axis, s.reverse))
                result.append((array, gradient))
        made = loop.finish(nexts, finals, stacked, trips=node.trips, descending=True)
        made.body.prune()
        drop_operands(graph, made)
        return result

    def _final(self, array: str, result: Contributions, dtype: Any = None) -> str | None:
        if array not in self._wanted:
            return None
        name = self._graph.add_array("states_grad", self._graph.shape(array), dtype or self._graph.dtype(array))
        result.append((array, name))
        return name

    @staticmethod
    def _zeros(graph: Graph, b: Builder, like: str, dtype: Any = None) -> str:
        return b.full(graph.shape(like), 0, dtype or graph.dtype(like))


def _place(body: Graph, name: str, view: str, node: Repeat) -> tuple[int, bool] | None:
    """(axis, from the end?) when ``view`` is the slice of ``name`` at the counter and iterations take all of them."""
    shape, strides = body.shape(name), body.strides(name)
    for axis, (extent, stride) in enumerate(zip(shape, strides)):
        rest = [k for k in range(len(shape)) if k != axis]
        same = body.shape(view) == tuple(shape[k] for k in rest) and body.strides(view) == tuple(
            strides[k] for k in rest
        )
        if same and extent == node.trips and stride != 0:
            for reverse in (False, True):
                position: Any = extent - 1 - node.counter if reverse else node.counter
                if _equal(body.view_offset(view), dim(position * stride)):
                    return axis, reverse
    return None


def _equal(a: Dim, b: Dim) -> bool:
    return bool(sympy.expand(sympy.sympify(a) - b) == 0)
