"""Pairs of kernels that are alike are merged once: iterations of a loop that was unrolled, equal layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from daceopt.ir.access.kernel_pattern import array_numbers, body_of, buffer_starts
from daceopt.ir.fusion.fusion import fresh_local, merge_with_locals
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.dims import Dim, dim


class _Place(NamedTuple):
    """Where an array of the graph is: from ``offset`` on in ``root``; ``sources``: the arrays that its elements are
    of."""

    root: str
    offset: Dim
    sources: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """A kernel with numbers for names: equal kernels have the same ``number``.

    ``names``: what its arrays are called, and ``places``: where those of the graph are; ``roots``: buffer -> its
    number, and the offset from which offsets count; ``written``: the arrays of the graph that it writes.
    """

    kernel: Kernel
    number: int
    names: Mapping[str, int]
    places: Mapping[str, _Place]
    roots: Mapping[str, tuple[int, Dim]]
    written: tuple[str, ...]


@dataclass(frozen=True)
class _Outcome:
    """What came of merging two kernels; ``locals_of``: local that is new -> the array whose values it has."""

    first: _Form
    second: _Form
    result: Kernel | str
    locals_of: Mapping[str, str]


class MergeMemory:
    """Merges kernels of a graph that does not change meanwhile.

    Pairs are alike that differ in names alone, and in where arrays begin in their buffers: legality and profit ask for
    distances between what both access. Locals are in the form of :func:`daceopt.ir.fusion.fusion.expand_locals`.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._forms: dict[int, _Form] = {}  # by the identity of the kernel, which the form keeps alive
        self._numbers: dict[Any, int] = {}
        self._outcomes: dict[Any, _Outcome] = {}

    def merge(
        self,
        first: Kernel,
        second: Kernel,
        needed: Callable[[str], bool],
        policy: str,
        finish: Callable[[Kernel], Kernel | str],
    ) -> Kernel | str:
        """What ``finish`` makes of what :func:`daceopt.ir.fusion.fusion.merge` gives: it, another kernel, or what is
        against it. ``policy``: equal names are equal rules of ``finish``, which may look at nothing but the kernels."""
        one, other = self._form(first), self._form(second)
        key = policy, one.number, other.number, _relation(one, other), tuple(map(needed, one.written))
        outcome = self._outcomes.get(key)
        if outcome is not None:
            return self._translate(outcome, one, other)
        result, locals_of = merge_with_locals(self._graph, first, second, needed)
        result = finish(result) if isinstance(result, Kernel) else result
        new = {local: array for array, local in locals_of.items() if local not in one.names}
        self._outcomes[key] = _Outcome(one, other, result, new)
        return result

    def _form(self, kernel: Kernel) -> _Form:
        if id(kernel) not in self._forms:
            self._forms[id(kernel)] = self._new_form(kernel)
        return self._forms[id(kernel)]

    def _new_form(self, kernel: Kernel) -> _Form:
        graph = self._graph
        names = array_numbers(kernel)
        places, roots = self._places(n for n in names if n not in kernel.locals)
        arrays = [
            (names[n], graph.dtype(n), graph.shape(n), graph.strides(n), _start(roots, places[n])) for n in places
        ]
        locals_ = tuple((names.get(n), *kind) for n, kind in kernel.locals.items())
        form = kernel.label, tuple(arrays), locals_, body_of(kernel, names)
        number = self._numbers.setdefault(form, len(self._numbers))
        written = tuple(dict.fromkeys(a.array for a in kernel.writes()))
        return _Form(kernel, number, names, places, roots, written)

    def _places(self, names: Iterable[str]) -> tuple[dict[str, _Place], dict[str, tuple[int, Dim]]]:
        """Where arrays of the graph are, and the number and first offset of each of their buffers."""
        places = {n: _Place(*self._graph.root(n), tuple(self._graph.sources(n))) for n in names}
        starts = buffer_starts((place.root, place.offset) for place in places.values())
        return places, {root: (k, start) for k, (root, start) in enumerate(starts.items())}

    def _form_over(self, form: _Form, names: Mapping[str, str]) -> _Form:
        """The form of its kernel over other arrays, which lie as its own do."""
        kernel = form.kernel.over(names)
        called = {names.get(name, name): k for name, k in form.names.items()}
        places, roots = self._places(n for n in called if n not in kernel.locals)
        return _Form(kernel, form.number, called, places, roots, tuple(names.get(n, n) for n in form.written))

    def _translate(self, outcome: _Outcome, first: _Form, second: _Form) -> Kernel | str:
        """The outcome for kernels like those that it is of."""
        forms = (outcome.first, first), (outcome.second, second)
        names = {old: new for one, other in forms for old, new in zip(one.names, other.names)}
        if isinstance(outcome.result, str):
            words = names | {old: new for one, other in forms for old, new in zip(one.roots, other.roots)}
            words |= {f"{old}_l": f"{new}_l" for old, new in names.items()}
            return re.sub(r"\w+", lambda word: words.get(word[0], word[0]), outcome.result)
        locals_in_use = {*first.kernel.locals, *second.kernel.locals}
        for local, array in outcome.locals_of.items():
            names[local] = fresh_local(self._graph, names[array], locals_in_use)
            locals_in_use.add(names[local])
        form = self._form_over(self._form(outcome.result), names)
        self._forms[id(form.kernel)] = form
        return form.kernel


def _start(roots: Mapping[str, tuple[int, Dim]], place: _Place) -> tuple[int, Dim] | None:
    """The number of its buffer, and the distance from where that counts; None of a buffer that is not there."""
    if place.root not in roots:
        return None
    number, base = roots[place.root]
    return number, dim(place.offset - base)


def _relation(first: _Form, second: _Form) -> tuple[Any, ...]:
    """What of the first each array of the second is."""
    relation: list[Any] = []
    for name in second.names:
        place = second.places.get(name)
        if place is None:
            relation.append(first.names.get(name))
        else:
            sources = tuple(first.names.get(s) for s in place.sources)
            relation.append((first.names.get(name), _start(first.roots, place), sources))
    return tuple(relation)
