"""Checks around every step of a recipe: the graph's structure, and its numbers against a float64 reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt.errors import VerificationError
from daceopt.passes import reproducer
from daceopt.passes.feeds import needed_inputs, random_inputs
from daceopt.passes.transform import look
from daceopt.store import identity

if TYPE_CHECKING:
    from daceopt.ir.graph import Graph
    from daceopt.ir.imported import Gradients
    from daceopt.passes.transform import Outcome, Transformation

# A step may reorder operations: this many times the unoptimized graph's error plus some ulps is rounding.
_FACTOR = 4.0
_ULPS = 16.0
_COARSE = 2.0**-6  # the most that a step may lose that is asked to be less exact: some roundings to bfloat16
_DISTURBED = 4  # executions with other roundings, where one alone does not explain an error
_SHOWN = 3  # changes that a message lists


class Structure:
    """Checks invariants; ``full`` validates the whole SDFG, else only that the graph is acyclic and complete.

    ``foreign``: the former behind steps that are not daceopt's own, the latter behind others.
    """

    def __init__(self, full: bool, foreign: bool = False):
        self._full, self._foreign = full, foreign

    def _is_full(self, transformation: Transformation) -> bool:
        return self._full or (self._foreign and not identity.is_own(type(transformation.inner).__module__))

    def failed(self, transformation: Transformation, failure: str, wanted: Gradients | None = None) -> str:
        """What else is to be said of a step that raised ``failure``: how to find out more."""
        return "; run `python -m daceopt bisect` to find the site"

    def before(self, graph: Graph) -> None:
        """Raise VerificationError when the graph is broken already."""
        self._check(graph, "before the step", self._full)

    def looking(self, transformation: Transformation, graph: Graph) -> None:
        """Raise VerificationError when matching alone changes the graph."""
        if self._is_full(transformation):
            check_match(transformation, graph)

    def after(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> float | None:
        """Raise VerificationError when ``transformation`` broke the graph."""
        if outcome.sites:
            last = f"{len(outcome.sites)} sites, the last at {outcome.sites[-1]}"
            self._check(graph, f"after step {transformation}, {last}", self._is_full(transformation))
        return None

    def _check(self, graph: Graph, where: str, full: bool) -> None:
        try:
            if full:
                graph.validate()
                check_schedules(graph)
            else:
                check_complete(graph)
        except Exception as error:
            raise VerificationError(f"graph {graph.sdfg.name} is invalid {where}: {error}") from error


def check_complete(graph: Graph) -> None:
    """Cheap check: no cycle, and everything read or returned is an input, a constant, or written. Raises ValueError."""
    read = {graph.root(n)[0] for node in graph.nodes() for n in graph.inputs_of(node) if n is not None}
    given = {*graph.inputs, *graph.constants}
    for name in sorted(read.union(graph.outputs)):
        if name not in graph.sdfg.arrays:
            raise ValueError(f"array {name} does not exist")
        due = graph.desc(name).transient or name in graph.outputs
        if due and name not in given and not graph.producers(name):
            raise ValueError(f"array {name} is {'returned' if name in graph.outputs else 'read'} but never written")


def check_match(transformation: Transformation, graph: Graph) -> None:
    """Raise VerificationError where the ``match`` of a transformation edits the graph that it should only look at."""
    before = contents(graph)
    look(transformation, graph)
    after = contents(graph)
    gone, new = [line for line in before if line not in after], [line for line in after if line not in before]
    changes = [f"- {line}" for line in gone] + [f"+ {line}" for line in new]
    if changes:
        shown = "; ".join([*changes[:_SHOWN], *(["..."] if len(changes) > _SHOWN else [])])
        edited = f"step {transformation}: match edited graph {graph.sdfg.name}: {shown}"
        raise VerificationError(f"{edited}; match only looks, edits belong into apply")


def contents(graph: Graph) -> dict[str, None]:
    """All that a graph says, line by line: its text, what edges and arrays stand behind it, and where values are."""
    from daceopt.ir import region
    from daceopt.ir.render import render

    # what is known of values is found out by looking
    lines = [line for line in render(graph).splitlines() if not line.lstrip().startswith("known ")]
    for body in region.everything(graph):
        lines += [f"{n}: {body.desc(n)}" for n in body.arrays()]
        lines += [f"{len(body.state.nodes())} nodes and {body.state.number_of_edges()} edges of {body.sdfg.name}"]
        lines += [f"{n} of {body.sdfg.name} holds {id(value)}" for n, value in body.constants.items()]
    return dict.fromkeys(lines)


def check_schedules(graph: Graph) -> None:
    """Raise IllegalSchedule where the schedule of a kernel does not compute what the kernel says."""
    from daceopt.ir.kernel import Kernel
    from daceopt.ir.schedule_check import check

    for entry, tree in graph.schedules.items():
        check(graph, Kernel.extract(graph, entry), tree)


class Numerics:
    """Executes the graph around every step and compares it with the float64 result of the graph as it was at first."""

    def __init__(self, graph: Graph, inputs: dict[str, np.ndarray] | None = None):
        self._structure = Structure(full=True)
        self._structure.before(graph)
        self.inputs = {**random_inputs(graph), **(inputs or {})}
        self._exact = outputs(graph, self.inputs, exact=True)
        self._first = self._errors(graph)
        self._initial = graph.copy()
        self._disturbed: dict[str, float] | None = None
        self._previous: Graph | None = None

    def before(self, graph: Graph) -> None:
        """Keep a copy, to reproduce what the step does."""
        self._previous = graph.copy()

    def failed(self, transformation: Transformation, failure: str, wanted: Gradients | None = None) -> str:
        """Where the reproducer of a step that raised ``failure`` is, to be said with it."""
        return self._saved(transformation, failure, wanted)

    def looking(self, transformation: Transformation, graph: Graph) -> None:
        """Raise VerificationError when matching alone changes the graph."""
        with self._reproduced(transformation):
            self._structure.looking(transformation, graph)

    def after(self, transformation: Transformation, graph: Graph, outcome: Outcome) -> float:
        """The error now. Raises VerificationError, with the site and a reproducer, when it is more than rounding."""
        with self._reproduced(transformation):
            self._structure.after(transformation, graph, outcome)
        if not outcome.sites:
            return max(self._errors(graph), default=0.0)
        errors = self._errors(graph)
        if transformation.changes_precision and max(errors, default=0.0) < _COARSE:
            self._first = errors
        if self.worse(errors) is None:
            return max(errors, default=0.0)
        raise VerificationError(self._report(transformation, graph, outcome))

    def complaint(self, graph: Graph) -> str | None:
        """What is wrong with the numbers of ``graph``, or None."""
        errors = self._errors(graph)
        output = self.worse(errors)
        if output is None:
            return None
        first = f"{self._first[output]:.3e} before the recipe"
        return f"output {graph.outputs[output]} has error {errors[output]:.3e} against float64, {first}"

    def worse(self, errors: list[float]) -> int | None:
        """The position of an output whose error rounding does not explain, or None."""
        for k, (error, first, exact) in enumerate(zip(errors, self._first, self._exact, strict=True)):
            floating = exact.dtype.kind == "f"
            if within_rounding(error, first, floating):
                continue
            if not floating or not within_rounding(error, self._other_roundings(k)):
                return k
        return None

    def _other_roundings(self, output: int) -> float:
        """The error that other roundings of the graph as it was at first have: where terms cancel, a result may be
        rounding alone, and its error in one execution is chance."""
        if self._disturbed is None:
            exact = dict(zip(self._initial.outputs, self._exact, strict=True))
            self._disturbed = disturbed_errors(self._initial, self.inputs, exact)
        return self._disturbed[self._initial.outputs[output]]

    def _errors(self, graph: Graph) -> list[float]:
        return [relative_error(a, e) for a, e in zip(outputs(graph, self.inputs), self._exact, strict=True)]

    def _report(self, transformation: Any, graph: Graph, outcome: Outcome) -> str:
        assert self._previous is not None
        site = self.guilty_site(transformation, self._previous, len(outcome.sites))
        where = f"site {site + 1} of {len(outcome.sites)}: {outcome.sites[site]}"
        failure = f"step {transformation}: {self.complaint(graph)}"
        return f"{failure}; {where}{self._saved(transformation, failure)}"

    @contextmanager
    def _reproduced(self, transformation: Transformation) -> Iterator[None]:
        """What is found wrong within the block is told with a reproducer."""
        try:
            yield
        except VerificationError as error:
            raise VerificationError(f"{error}{self._saved(transformation, str(error))}") from error

    def _saved(self, transformation: Transformation, failure: str, wanted: Gradients | None = None) -> str:
        assert self._previous is not None
        fields = None if wanted is None else (wanted.inputs, wanted.outputs, wanted.policy)
        needed = needed_inputs(self._previous, self.inputs)
        return f"; reproducer in {reproducer.of_step(transformation, self._previous, needed, failure, fields)}"

    def guilty_site(self, transformation: Transformation, graph: Graph, count: int) -> int:
        """The index of the first of ``count`` sites after which the numbers are wrong (bisection on copies)."""
        low, high = 0, count  # right after ``low`` sites, wrong after ``high``
        while high - low > 1:
            middle = (low + high) // 2
            trial = graph.copy()
            transformation.run(trial, limit=middle)
            if self.worse(self._errors(trial)) is None:
                low = middle
            else:
                high = middle
        return high - 1


def outputs(graph: Graph, inputs: dict[str, np.ndarray], exact: bool = False) -> list[np.ndarray]:
    """Interpret ``graph``; the outputs in order, computed in float64 if ``exact``."""
    import daceopt.ops  # noqa: F401  (registers how library nodes and operators are interpreted)
    from daceopt.ir.interpret import interpret

    found = interpret(graph, inputs, np.float64 if exact else None)
    return [np.asarray(found[name]) for name in graph.outputs]


def disturbed_errors(graph: Graph, inputs: dict[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest finite error of each array of ``exact`` in executions of ``graph`` with other roundings."""
    from daceopt import ops
    from daceopt.ir.disturbance import Disturbance
    from daceopt.ir.interpret import interpret

    lowered = graph.copy()
    ops.lower_all(lowered)
    runs = [interpret(lowered, inputs, disturbance=Disturbance(seed)) for seed in range(_DISTURBED)]
    errors = {n: [relative_error(np.asarray(run[n]), e) for run in runs] for n, e in exact.items()}
    return {n: max((e for e in found if np.isfinite(e)), default=0.0) for n, found in errors.items()}


def relative_error(ours: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude; infinite where shapes, NaN or infinities differ."""
    if ours.shape != exact.shape:
        return float("inf")
    a, e = ours.astype(np.float64), exact.astype(np.float64)
    finite = np.isfinite(e)
    if not np.array_equal(a[~finite], e[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(e[finite]).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(a[finite] - e[finite]).max()) / scale


def within_rounding(error: float, peer: float, floating: bool = True) -> bool:
    """Is a float32 result's relative ``error`` explained by rounding, given that of another program for the same?"""
    return error <= _FACTOR * peer + (_ULPS * float(np.finfo(np.float32).eps) if floating else 0.0)
