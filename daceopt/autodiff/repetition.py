"""Back-propagation through time: the gradient of a loop is a loop that counts down.

The forward loop collects its carried values as they are at the begin of each iteration, and its products; the backward
loop computes the rest of the body again from them, and carries their gradients. What an iteration reads as a slice at
the counter gets its gradient as a slice; what all iterations read gets a sum. A sum of products of few rows is one
product of many behind the loop, whose factors the iterations leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from daceopt.autodiff.collected import Collected
from daceopt.autodiff.differentiate import extend
from daceopt.autodiff.rules import Contributions, Grads, adjoint, preparation
from daceopt.autodiff.views import view_adjoint
from daceopt.errors import Unsupported
from daceopt.ir.control.region import Repeat, drop_operands, keep, keep_states
from daceopt.ir.control.region_builder import LoopBuilder, free_symbols
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Contraction, Convolution
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim, hint
from daceopt.ir.scalar.symbols import is_counter


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
    keep(b.graph, node, _products(node.body))


@adjoint(Repeat)
def repeat(b: Builder, node: Repeat, grads: Grads, wrt: Collection[str]) -> Contributions:
    """One iteration of the backward loop for each of the forward loop, in the opposite order."""
    _check(node)
    return _Backward(b, node, grads, wrt).run()


@dataclass(frozen=True)
class _Slice:
    """A captured array that the body reads at the counter only: ``view`` of it, for which ``input`` stands in."""

    array: str
    view: str
    input: str
    axis: int
    reverse: bool


@dataclass(frozen=True)
class _Shared:
    """A captured array that all iterations read alike: ``view`` is all that reads it, and ``input`` stands in for that
    (both are ``array`` where it is read in other ways)."""

    array: str
    view: str
    input: str


def _products(body: Graph) -> list[str]:
    """Results of products that are arrays of their own: dear to compute again, as outside of loops."""
    results = (body.writes(n)["Y"] for n in body.nodes() if isinstance(n, Contraction | Convolution))
    return [n for n in results if not body.is_view(n) and not body.is_part(n) and n not in body.outputs]


class _Backward:
    def __init__(self, b: Builder, node: Repeat, grads: Grads, wrt: Collection[str]):
        self._b, self._graph, self._node, self._grads, self._wrt = b, b.graph, node, grads, wrt
        self._reads, self._writes = b.graph.reads(node), b.graph.writes(node)
        self._body = node.body.copy()
        self._carried = [k for k, c in enumerate(node.carried) if types.is_float(self._body.dtype(c.input))]
        first = len(node.carried)
        self._stacked = [first + k for k, s in enumerate(node.stacked) if self._writes.get(s.connector) in grads]

    def run(self) -> Contributions:
        node, body = self._node, self._body
        slices = list(self._expose_slices())
        sliced = {s.array for s in slices}
        shared = list(self._expose_shared(sliced))
        outputs = [body.outputs[k] for k in (*self._carried, *self._stacked)]
        states = [node.carried[k].input for k in self._carried]
        seeds, gradients = extend(body, outputs, [*states, *(s.input for s in slices), *(s.input for s in shared)])
        body.outputs = []
        self._loop = LoopBuilder.adopt(self._graph, f"{node.label}_backward", node, body)
        self._replay([*slices, *(s for s in shared if s.input != s.array)], outputs, seeds)
        return self._close(outputs, seeds, gradients, slices, shared)

    def _captured_inputs(self) -> list[str]:
        """Inputs of the body whose gradient is wanted."""
        captured = self._node.captures[0].items()
        return [n for n, c in captured if self._reads[c] in self._wrt and types.is_float(self._body.dtype(n))]

    def _expose_slices(self) -> Iterator[_Slice]:
        """Make inputs of the slices, so that they have gradients of their own."""
        body = self._body
        for name in self._captured_inputs():
            views = body.views_of(name)
            if len(views) != 1 or body.consumers(name):
                continue
            place = _place(body, name, views[0], self._node)
            if place is None:
                continue
            yield _Slice(name, views[0], self._expose(views[0]), *place)

    def _expose(self, view: str) -> str:
        """An input of the body in place of a view."""
        body = self._body
        own = body.add_array("slice", body.shape(view), body.dtype(view), body.strides(view))
        body.inputs.append(own)
        body.replace_uses(view, own)
        return own

    def _expose_shared(self, sliced: Collection[str]) -> Iterator[_Shared]:
        """Gradients of the others are summed as what reads them sees them, and put into their layout once."""
        body = self._body
        for name in self._captured_inputs():
            if name in sliced:
                continue
            views = body.views_of(name)
            if len(views) != 1 or body.consumers(name) or not _is_whole(body, name, views[0]):
                yield _Shared(name, name, name)
                continue
            yield _Shared(name, views[0], self._expose(views[0]))

    def _replay(self, slices: Sequence[_Slice | _Shared], outputs: list[str], seeds: dict[str, str]) -> None:
        """Read what the forward loop read in this iteration, and the gradients of its stacked outputs."""
        node, body, loop = self._node, self._body, self._loop
        for s in slices:
            body.replace_uses(s.input, s.view)
            body.inputs.remove(s.input)
        for c in node.carried:
            self._stand_in(c.input, self._kept_value(c.input))
            body.inputs.remove(c.input)
        for name in node.states.keys() - {c.input for c in node.carried}:
            self._stand_in(name, self._kept_value(name))
        for k, output in zip(self._stacked, outputs[len(self._carried) :]):
            stacked = node.stacked[k - len(node.carried)]
            assert node.limit is not None
            position = node.limit - 1 - node.counter if stacked.reverse else node.counter
            if output in seeds:
                gradient = self._grads[self._writes[stacked.connector]]
                self._stand_in(seeds[output], loop.slice_of(gradient, stacked.axis, position))
                body.inputs.remove(seeds[output])

    def _kept_value(self, name: str) -> str:
        """What the forward loop collected of an array of its body, in this iteration."""
        return self._loop.slice_of(self._writes[self._node.states[name]], 0, self._node.counter)

    def _stand_in(self, name: str, view: str) -> None:
        """Let ``view`` take the place of an array of the body."""
        body = self._body
        try:
            body.replace_uses(name, view)
        except ValueError:
            body.replace_uses(name, Builder(body, "slice").copy(view))

    def _close(
        self,
        outputs: list[str],
        seeds: dict[str, str],
        gradients: dict[str, str | None],
        slices: list[_Slice],
        shared: list[_Shared],
    ) -> Contributions:
        """Carry the gradients of states and of what all iterations read; stack those of slices."""
        seeded = [(self._initial(k), k, seeds[n]) for k, n in zip(self._carried, outputs) if n in seeds]
        carried = [self._state(k, seed, gradients) for _, k, seed in seeded]
        result: Contributions = [(array, c.final) for (array, _, _), c in zip(seeded, carried) if c.final is not None]
        stacked = Collected(self._loop, self._node.trips)
        result += [self._slice(s, g, stacked) for s in slices if (g := gradients[s.input]) is not None]
        sums = [self._sum(one, g, stacked) for one in shared if (g := gradients[one.input]) is not None]
        carried += [one.total for one in sums if isinstance(one.total, _Carried)]
        nexts, finals = [c.following for c in carried], [c.final for c in carried]
        repeat = self._loop.finish(nexts, finals, stacked.stacked, trips=self._node.trips, descending=True)
        repeat.body.prune()
        drop_operands(self._graph, repeat)
        return [*result, *map(self._add_sum, sums)]

    def _initial(self, k: int) -> str:
        """The array with which a carried value of the forward loop begins."""
        return self._reads[self._node.carried[k].initial]

    def _state(self, k: int, seed: str, gradients: dict[str, str | None]) -> _Carried:
        """The gradient of a state: at first that of its last value, at last that of the first."""
        c, loop, initial = self._node.carried[k], self._loop, self._initial(k)
        end = self._writes.get(c.final) if c.final else None
        end_gradient = self._grads.get(end) if end else None
        loop.carry_as(seed, end_gradient or self._zeros(self._graph, self._b, initial))
        following = gradients[c.input] or self._zeros(loop.graph, loop.b, seed)
        needs_grad = initial in self._wrt
        return _Carried(following, self._like("states_grad", initial) if needs_grad else None)

    def _slice(self, one: _Slice, g: str, stacked: Collected) -> tuple[str, str]:
        """A captured array, and its gradient, of which an iteration has the slice ``g``."""
        array = self._reads[self._node.captures[0][one.array]]
        gradient = self._like("slices_grad", array)
        stacked.add(g, gradient, one.axis, one.reverse)
        return array, gradient

    def _sum(self, one: _Shared, g: str, stacked: Collected) -> _Sum:
        """The sum of ``g`` over the iterations: a product behind the loop, or a value that it carries."""
        total = self._hoist(g, stacked) or self._accumulate(one, g)
        return _Sum(*self._view(one), total)

    def _accumulate(self, one: _Shared, g: str) -> _Carried:
        loop = self._loop
        shape, dtype = loop.graph.shape(one.view), types.compute_type(loop.graph.dtype(one.input))
        total = loop.carry(self._b.full(shape, 0, dtype))
        following = loop.b.elementwise(lambda a, g: a + g, total, g, label="accumulate")
        return _Carried(following, self._graph.add_array("sum_grad", shape, dtype))

    def _hoist(self, g: str, stacked: Collected) -> _Hoisted | None:
        """The product that ``g`` is, if it is of so few rows that leaving them (``stacked``) moves less than a sum."""
        loop = self._loop
        body, makers = loop.graph, loop.graph.producers(g)
        if len(makers) != 1 or body.is_view(g) or not isinstance(makers[0], Contraction):
            return None
        (product,), reads = makers, body.reads(makers[0])
        if set(reads) != {"A", "B"} or product.activation is not None:
            return None
        shapes, dtypes = [body.shape(reads[c]) for c in "AB"], {body.dtype(n) for n in (*reads.values(), g)}
        (columns, rows), width = shapes[0][-2:], shapes[1][-1]
        few = hint(rows) * (hint(columns) + hint(width)) < hint(columns) * hint(width)
        if not few or any(len(s) != 2 for s in shapes) or len(dtypes) != 1:
            return None
        left, right = stacked.all_of([loop.b.transpose(reads["A"], [1, 0]), reads["B"]])
        return _Hoisted(left, right, float(product.alpha))

    def _view(self, one: _Shared) -> tuple[str, str]:
        """A captured array, and what of it the iterations see."""
        array, body = self._reads[self._node.captures[0][one.array]], self._loop.graph
        if one.view == one.array:
            return array, array
        shape, strides, offset = body.shape(one.view), body.strides(one.view), body.view_offset(one.view)
        return array, self._graph.add_view(array, "shared", shape, strides, offset)

    def _add_sum(self, one: _Sum) -> tuple[str, str]:
        """The gradient of a captured array, in its own layout."""
        total = one.total.product(self._b) if isinstance(one.total, _Hoisted) else str(one.total.final)
        return one.array, total if one.view == one.array else view_adjoint(self._b, one.view, total)

    def _like(self, hint: str, array: str) -> str:
        return self._graph.add_array(hint, self._graph.shape(array), self._graph.dtype(array))

    @staticmethod
    def _zeros(graph: Graph, b: Builder, like: str) -> str:
        return b.full(graph.shape(like), 0, graph.dtype(like))


@dataclass(frozen=True)
class _Carried:
    """A value of the backward loop: what the iteration that follows has, and the array around for the last one's."""

    following: str
    final: str | None


@dataclass(frozen=True)
class _Sum:
    """The gradient of ``view``, which is all that iterations see of a captured array, as a sum over them."""

    array: str
    view: str
    total: _Carried | _Hoisted


@dataclass(frozen=True)
class _Hoisted:
    """The sum over iterations of ``alpha`` A^T B, of whose factors ``left`` and ``right`` have the rows of all."""

    left: str
    right: str
    alpha: float

    def product(self, b: Builder) -> str:
        left, right = (
            b.reshape(x, (dim(prod(b.graph.shape(x)[:2])), b.graph.shape(x)[2])) for x in (self.left, self.right)
        )
        return b.matmul(b.transpose(left, [1, 0]), right, alpha=self.alpha)


def _is_whole(body: Graph, name: str, view: str) -> bool:
    """Does ``view`` show every element of ``name`` once, in every iteration the same?"""
    symbols = free_symbols([*body.shape(view), *body.strides(view), body.view_offset(view)])
    strides = [s for s, n in zip(body.strides(view), body.shape(view)) if n != 1]
    return body.size(view) == body.size(name) and 0 not in strides and not any(map(is_counter, symbols))


def _place(body: Graph, name: str, view: str, node: Repeat) -> tuple[int, bool] | None:
    """(axis, from the end?) when ``view`` is the slice of ``name`` at the counter and iterations take all of them."""
    for axis, (extent, stride) in enumerate(zip(body.shape(name), body.strides(name))):
        if extent == node.trips and stride != 0 and _is_without(body, name, view, axis):
            offset, counter = body.view_offset(view), node.counter
            positions: dict[bool, Dim] = {False: counter, True: extent - 1 - counter}
            directions = [reverse for reverse, position in positions.items() if _equal(offset, dim(position * stride))]
            if directions:
                return axis, directions[0]
    return None


def _is_without(body: Graph, name: str, view: str, axis: int) -> bool:
    """Does ``view`` have the other axes of ``name``, as they are?"""
    shape, strides = (x[:axis] + x[axis + 1 :] for x in (body.shape(name), body.strides(name)))
    return body.shape(view) == shape and body.strides(view) == strides


def _equal(a: Dim, b: Dim) -> bool:
    return bool(sympy.expand(sympy.sympify(a) - b) == 0)
