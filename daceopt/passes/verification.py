"""Checks around every step of a recipe: the graph's structure, and its numbers against a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import VerificationError
from daceopt.passes import reproducer
from daceopt.passes.feeds import needed_inputs, random_inputs
from daceopt.passes.rounding import disturbed_errors, outputs, relative_error, results, within_rounding
from daceopt.passes.transform import Outcome, Transformation, look
from daceopt.passes.witness import objection
from daceopt.store import identity

if TYPE_CHECKING:
    from daceopt.ir.control.imported import Gradients
    from daceopt.ir.graph.graph import Graph

_COARSE = 2.0**-6  # the most that a step may lose that is asked to be less exact: some roundings to bfloat16
_SHOWN = 3  # changes that a message lists


_NOTHING, _SOMEWHERE = Transformation(), Outcome(["somewhere"], [])


class Structure:
    """Checks invariants; ``full`` validates the whole graph, else only that the graph is acyclic and complete.

    ``foreign``: the former behind steps that are not daceopt's own, the latter behind others.
    """

    def __init__(self, full: bool, foreign: bool = False):
        self._full, self._foreign = full, foreign
        self._promised: list[_Promise] | None = None

    def _is_full(self, transformation: Transformation) -> bool:
        return self._full or (self._foreign and not identity.is_own(transformation.inner.defined_by.__module__))

    def explain_failure(self, transformation: Transformation, failure: str, gradients: Gradients | None = None) -> str:
        """What else is to be said of a step that raised ``failure``: how to find out more."""
        return "; run `python -m daceopt bisect` to find the site"

    def before(self, graph: Graph) -> None:
        """Raise VerificationError when the graph is broken already: looked at before the first step, and behind each
        one that edits it."""
        if self._full or self._promised is None:
            self.check(graph, "before the step", self._full)
        self._promised = promises(graph)

    def looking(self, transformation: Transformation, graph: Graph) -> None:
        """Raise VerificationError when matching alone changes the graph."""
        if self._is_full(transformation):
            check_match(transformation, graph)

    def after(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> float | None:
        """Raise VerificationError when ``transformation`` broke the graph."""
        if outcome.sites:
            last = f"{len(outcome.sites)} sites, the last at {outcome.sites[-1]}"
            self.check(graph, f"after step {transformation}, {last}", self._is_full(transformation))
            if not transformation.edits_programs:
                self._keeps_promise(graph, f"after step {transformation}")
        return None

    def _keeps_promise(self, graph: Graph, where: str) -> None:
        """Raise VerificationError where inputs or outputs are no longer what callers pass and get."""
        for old, new in zip(self._promised or (), promises(graph)):
            if old != new and _promise_text(old) != _promise_text(new):
                difference = f"expected {_promise_text(old)}, found {_promise_text(new)}"
                raise VerificationError(f"graph {graph.name} is invalid {where}: {difference}")

    def is_for(self, graph: Graph) -> bool:
        """Can ``graph``, which a step on a program made, be checked as the graph before it?"""
        return True

    def check(self, graph: Graph, where: str, full: bool = True) -> None:
        """Raise VerificationError, which says ``where``, when the graph is broken; ``full`` as above."""
        from daceopt.ir.graph import validation  # a warm start reads recipes without it

        try:
            if full:
                graph.validate()
                check_kernels(graph)
            else:
                validation.check_complete(graph)
        except Exception as error:
            # what is wrong is the graph: no error of the step that somebody might pass over
            raise VerificationError(f"graph {graph.name} is invalid {where}: {error}") from None


def check_match(transformation: Transformation, graph: Graph) -> None:
    """Raise VerificationError where the ``match`` of a transformation edits the graph that it should only look at."""
    before = contents(graph)
    look(transformation, graph)
    after = contents(graph)
    old, new = [line for line in before if line not in after], [line for line in after if line not in before]
    changes = [f"- {line}" for line in old] + [f"+ {line}" for line in new]
    if changes:
        shown = "; ".join([*changes[:_SHOWN], *(["..."] if len(changes) > _SHOWN else [])])
        edited = f"step {transformation}: match edited graph {graph.name}: {shown}"
        raise VerificationError(f"{edited}; match only looks, edits belong into apply")


def contents(graph: Graph) -> dict[str, None]:
    """All that a graph says, line by line: its text, what edges and arrays are behind it, and where values are."""
    from daceopt.ir.control import region
    from daceopt.ir.text.render import render

    # what is known of values is found out by looking
    lines = [line for line in render(graph).splitlines() if not line.lstrip().startswith("known ")]
    for body in region.everything(graph):
        lines += [f"{n}: {body.desc(n)}" for n in body.arrays()]
        edges = sum(len(body.reads(n)) + len(body.writes(n)) for n in body.compute())
        lines += [f"{len(body.compute())} nodes and {edges} edges of {body.name}"]
        lines += [f"{n} of {body.name} holds {id(value)}" for n, value in body.constants.items()]
    return dict.fromkeys(lines)


_Promise = tuple[str, Any, Any]


def promises(graph: Graph) -> list[_Promise]:
    """What callers pass and get, with types and shapes: a step may give an output another name, nothing else."""
    described = {name: (graph.dtype(name), graph.shape(name)) for name in (*graph.inputs, *graph.outputs)}
    inputs = [(f"input {name}", *described[name]) for name in graph.inputs]
    return [*inputs, *((f"output {k}", *described[name]) for k, name in enumerate(graph.outputs))]


def _promise_text(promise: _Promise) -> str:
    what, dtype, shape = promise
    return f"{what} is {dtype} of shape {shape}"


def check_kernels(graph: Graph) -> None:
    """Raise IllegalSchedule where the schedule of a kernel does not compute what the kernel says, and where iterations
    of a kernel write the same element: threads would race for it."""
    from daceopt.ir.access.references import check_overlaps
    from daceopt.ir.legality.schedule_check import check

    for node in graph.kernels():
        check_overlaps(graph, node.kernel)
        if node.tree is not None:
            check(graph, node.kernel, node.tree)


class Numerics:
    """Executes the graph around every step and compares it with the float64 result of the graph as it was at first."""

    def __init__(self, graph: Graph, inputs: dict[str, np.ndarray] | None = None):
        self._structure = Structure(full=True)
        self._structure.before(graph)
        self.inputs = {**random_inputs(graph), **(inputs or {})}
        self._exact = outputs(graph, self.inputs, exact=True)
        self._first = self._errors(graph)
        self._initial = graph.copy()
        self._disturbed: dict[float, dict[str, float]] = {}
        self._previous: Graph | None = None

    def before(self, graph: Graph) -> None:
        """Keep a copy, to reproduce what the step does."""
        self._previous = graph.copy()

    def explain_failure(self, transformation: Transformation, failure: str, gradients: Gradients | None = None) -> str:
        """Where the reproducer of a step that raised ``failure`` is, to be said with it."""
        return self._save(transformation, failure, gradients)

    def looking(self, transformation: Transformation, graph: Graph) -> None:
        """Raise VerificationError when matching alone changes the graph."""
        with self._reproduce(transformation):
            self._structure.looking(transformation, graph)

    def after(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> float:
        """The error now. Raises VerificationError, with the site and a reproducer, when it is more than rounding."""
        self._check_structure(transformation, graph, outcome)
        if not outcome.sites:
            return max(self._errors(graph), default=0.0)
        errors = self._errors(graph)
        if transformation.changes_precision and all(map(self._is_coarse, range(len(errors)), errors)):
            self._first = errors
        if self.worse(errors) is None:
            return max(errors, default=0.0)
        raise VerificationError(self._report(transformation, graph, outcome))

    def _check_structure(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> None:
        try:
            self._structure.after(transformation, graph, outcome)
        except VerificationError as error:
            where = self._where(transformation, outcome, self._breaks)
            raise VerificationError(f"{error}{where}{self._save(transformation, str(error))}") from None

    def _breaks(self, graph: Graph) -> bool:
        try:
            self._structure.after(_NOTHING, graph, _SOMEWHERE)
        except VerificationError:
            return True
        return False

    def _where(self, transformation: Transformation, outcome: Outcome, wrong: Callable[[Graph], bool]) -> str:
        """At which of its sites a step went wrong; nothing of a step on a program, which has no sites to stop at."""
        assert self._previous is not None
        if transformation.edits_programs:
            return ""
        site = guilty_site(transformation, self._previous, len(outcome.sites), wrong)
        return f"; site {site + 1} of {len(outcome.sites)}: {outcome.sites[site]}"

    def complaint(self, graph: Graph) -> str | None:
        """What is wrong with the numbers of ``graph``, or None."""
        errors = self._errors(graph)
        output = self.worse(errors)
        if output is None:
            return None
        first = f"{self._first[output]:.3e} before the recipe"
        kind = "output" if output < len(graph.outputs) else "saved array"
        return f"{kind} {results(graph)[output]} has error {errors[output]:.3e} against float64, {first}"

    def worse(self, errors: list[float]) -> int | None:
        """The position of an output whose error rounding does not explain, or None."""
        for k, (error, first, exact) in enumerate(zip(errors, self._first, self._exact, strict=True)):
            floating = exact.dtype.kind == "f"
            if within_rounding(error, first, floating):
                continue
            if not floating or not within_rounding(error, self._other_roundings(k)):
                return k
        return None

    def _is_coarse(self, output: int, error: float) -> bool:
        """Is ``error`` what products of less precision explain, in this result and in what it is computed from?"""
        return error < _COARSE or error <= self._other_roundings(output, _COARSE)

    def _other_roundings(self, output: int, sums: float = 0.0) -> float:
        """The error that other roundings of the graph as it was at first have: where terms cancel, a result may be
        rounding alone, and its error in one execution is chance. ``sums``: as of :class:`Disturbance`.

        Raises VerificationError where the reference is what is wrong.
        """
        if not self._disturbed and (reason := objection(self._initial, self.inputs, self._exact)):
            raise VerificationError(reason)
        if sums not in self._disturbed:
            exact = dict(zip(results(self._initial), self._exact, strict=True))
            self._disturbed[sums] = disturbed_errors(self._initial, self.inputs, exact, sums)
        return self._disturbed[sums][results(self._initial)[output]]

    def is_for(self, graph: Graph) -> bool:
        """Can ``graph``, which a step on a program made, be executed and compared as the graph before it?"""
        return len(graph.outputs) == len(self._initial.outputs) and set(graph.inputs) <= set(self.inputs)

    def _errors(self, graph: Graph) -> list[float]:
        # a step on a program may save more behind the outputs
        arrays = outputs(graph, self.inputs)[: len(self._exact)]
        return [relative_error(_as_image(a, e.shape), e) for a, e in zip(arrays, self._exact, strict=True)]

    def _report(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> str:
        failure = f"step {transformation}: {self.complaint(graph)}"
        where = self._where(transformation, outcome, lambda trial: self.worse(self._errors(trial)) is not None)
        return f"{failure}{where}{self._save(transformation, failure)}"

    @contextmanager
    def _reproduce(self, transformation: Transformation) -> Iterator[None]:
        """What is found wrong within the block is told with a reproducer."""
        try:
            yield
        except VerificationError as error:
            raise VerificationError(f"{error}{self._save(transformation, str(error))}") from None

    def _save(self, transformation: Transformation, failure: str, gradients: Gradients | None = None) -> str:
        assert self._previous is not None
        fields = None if gradients is None else (gradients.inputs, gradients.outputs, gradients.policy)
        needed = needed_inputs(self._previous, self.inputs)
        return f"; reproducer in {reproducer.of_step(transformation, self._previous, needed, failure, fields)}"


def guilty_site(transformation: Transformation, graph: Graph, count: int, wrong: Callable[[Graph], bool]) -> int:
    """The index of the first of ``count`` sites after which ``graph`` is ``wrong`` (bisection on copies)."""
    low, high = 0, count  # right after ``low`` sites, wrong after ``high``
    while high - low > 1:
        middle = (low + high) // 2
        trial = graph.copy()
        transformation.run(trial, limit=middle)
        low, high = (low, middle) if wrong(trial) else (middle, high)
    return high - 1


def _as_image(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What a step has saved in blocks of channels, as it was before."""
    from daceopt.ir.nodes import blocked

    is_blocked = value.ndim == len(shape) + 1 and blocked.image_shape(value.shape) == shape
    return blocked.unpack(value) if is_blocked else value
