"""``explore``: an interactive session on a model, in which each rewrite is looked at, applied, undone and measured."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt import progress
from daceopt.errors import SessionError, Unsupported, did_you_mean
from daceopt.explore.report.html import to_document, to_fragment
from daceopt.explore.report.report import Report
from daceopt.explore.session import site_list
from daceopt.explore.session.comparison import Comparison, compare
from daceopt.explore.session.guilt import explain
from daceopt.explore.session.kernel_alone import KernelMeasurement, MeasuringPlace, code_alone, measure_alone
from daceopt.explore.session.saved_path import recipe_file
from daceopt.explore.session.session_page import page
from daceopt.explore.session.session_state import SessionState
from daceopt.explore.session.session_text import to_text
from daceopt.explore.session.site_list import FoundSite, SiteList
from daceopt.explore.session.steps import Change, in_order, resolve, whole_steps
from daceopt.explore.session.subject import subject_of
from daceopt.explore.session.version import Version
from daceopt.explore.session.version_report import report_of
from daceopt.ir.graph.kinds import is_operator
from daceopt.passes.recipe import Recipe
from daceopt.passes.runner import Runner
from daceopt.passes.transform import Transformation

if TYPE_CHECKING:
    from daceopt.codegen.shown import Shown
    from daceopt.explore.report.tables import KernelRow
    from daceopt.explore.session.subject import Subject
    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph

MAIN = "main"
_MOST_SHOWN = 300  # kernels whose code a notebook shows
StepLike = FoundSite | Transformation | type[Transformation] | str


def explore(
    model: object,
    *inputs: object,
    backward: bool | None = None,
    verify: str = "foreign",
    graph: int | None = None,
    **kwargs: object,
) -> Session:
    """A session that starts at the captured graph of ``model``; nothing is compiled before something is measured.

    Where module and inputs are on a CUDA device, the graph is for that device, and is measured there.

    ``model``: a module, plain or optimized, of which a copy is called once on ``inputs`` and ``kwargs``; an ONNX file's
    path, bytes or proto, or what ``from_onnx`` returned; or an ``ir`` graph. The latter get random inputs where none
    are given. ``backward``: may it be differentiated? As for ``optimized_module``; of files and graphs, by all inputs,
    when True. ``verify``: what is checked around every step, as of :class:`daceopt.passes.runner.Runner`: "foreign",
    all of the structure behind steps that are not daceopt's own; "numerics" takes the given inputs. ``graph``: which
    one of a module whose graph breaks.

    Raises CaptureError and Unsupported, with the reason, for what cannot be captured; TypeError for a model of another
    type and for inputs that do not fit.
    """
    with progress.phase("capture"):
        subject = subject_of(model, inputs, kwargs, backward, graph)
    return Session(subject, verify)


class Session:
    """A walk through versions of a program; ``branch`` starts another one from here.

    What it does is always a recipe: steps have the order of their levels, and ``save`` writes them as one.
    """

    def __init__(self, subject: Subject, verify: str = "foreign", name: str = MAIN):
        self._subject, self._verify, self.name = subject, verify, name
        self._numbers = itertools.count()
        self._branches: dict[str, Session] = {name: self}
        self._redo: list[Version] = []
        self._scratch: tuple[Version, Program] | None = None  # a copy to look at
        self._reports: dict[tuple[int, str, bool, bool], Report] = {}
        Runner(Recipe(name), verify)  # a wrong ``verify`` is told now
        self._at = Version(next(self._numbers), subject.program, sizes=subject.sizes())

    # ---------------------------------------------------------------- looking

    @property
    def title(self) -> str:
        """What the model is called."""
        return self._subject.title

    @property
    def program(self) -> Program:
        """A copy of the program as it is now."""
        return self._at.program.copy()

    @property
    def forward(self) -> Graph:
        """A copy of the forward graph as it is now."""
        return self._at.program.forward.copy()

    @property
    def backward(self) -> Graph | None:
        """A copy of the backward graph, once there is one."""
        graph = self._at.program.backward
        return None if graph is None else graph.copy()

    @property
    def path(self) -> tuple[Transformation, ...]:
        """The steps from the captured graph to here."""
        return self._at.path()

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the model, and of choices on the way."""
        return (*self._subject.notes, *(note for version in self._at.line() for note in version.notes))

    @property
    def undone(self) -> tuple[Version, ...]:
        """What ``redo`` would go to, the next one last."""
        return tuple(self._redo)

    @property
    def at(self) -> Version:
        """Where the session is."""
        return self._at

    def sites(self, *transformations: Transformation | type[Transformation] | str) -> SiteList:
        """Where these transformations apply now, and where they almost do; where none is named, all that are registered
        and may be behind the steps so far.

        Nothing is changed, whatever a transformation does. Raises DaceoptError for an unknown name.
        """
        named = [resolve(t) for t in transformations]
        steps = named or [t for t in whole_steps() if in_order(self._at, t)]
        if self._scratch is None or self._scratch[0] is not self._at:
            self._scratch = self._at, self.program
        sites = site_list.find(self, self._at.program, self._scratch[1], steps)
        if sites.failures:
            self._scratch = None  # who knows what they left
        late = [t.name for t in whole_steps() if t not in steps] if not named else []
        return replace(sites, late=tuple(late))

    # ---------------------------------------------------------------- walking

    def apply(self, step: StepLike | Recipe | os.PathLike[str]) -> Session:
        """Apply a site, a step at all of its sites (an object, a class or text with options), a recipe or its name, or
        a recipe file, as one change; returns the session.

        Raises SessionError, with the step, the site and the cause, where it fails; DaceoptError for an unknown name or
        option, and where the steps would be in no recipe's order. The session stays as it was then.
        """
        change = Change.of(step, self._at)
        program, start = self._at.program.copy(), self._at
        inputs = self._subject.values() if self._verify == "numerics" else None
        attempts: list[Transformation] = []
        try:
            outcome = change.run(
                program, self._verify, inputs, lambda transformation, graph: attempts.append(transformation)
            )
        except Exception as error:
            first = start.program if len(change.steps) == 1 else None
            message = explain(error, attempts[-1] if attempts else None, first)
            raise SessionError(f"{message}; the session is as it was, at version {start.number}") from error
        self._at = Version(
            next(self._numbers),
            outcome.program,
            change.title,
            outcome.steps,
            outcome.records,
            start,
            outcome.notes,
            start.sizes,
        )
        self._redo.clear()
        return self

    def undo(self, count: int = 1) -> Session:
        """Go back ``count`` changes. Raises SessionError where there are not that many."""
        return self._walk(count, "undo", len(self._at.line()) - 1, self._undo)

    def redo(self, count: int = 1) -> Session:
        """Go forward again, ``count`` changes that were undone. Raises SessionError where there are not that many."""
        return self._walk(count, "redo", len(self._redo), self._again)

    def _walk(self, count: int, name: str, most: int, go: Callable[[], None]) -> Session:
        if not isinstance(count, int) or not 0 <= count <= most:
            raise SessionError(f"{name}({count!r}): there are {most} changes to {name}")
        for _ in range(count):
            go()
        return self

    def _undo(self) -> None:
        assert self._at.parent is not None
        self._redo.append(self._at)
        self._at = self._at.parent

    def _again(self) -> None:
        self._at = self._redo.pop()

    def branch(self, name: str) -> Session:
        """The session called ``name``: a new one that starts here, or the one of that name where it is now."""
        if not isinstance(name, str) or not name:
            raise SessionError(f"branch({name!r}): expected a name")
        if name not in self._branches:
            new = Session.__new__(Session)
            new.__dict__.update(self.__dict__, name=name, _redo=list(self._redo))
            self._branches[name] = new
        return self._branches[name]

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of the sessions that began at the same captured graph."""
        return tuple(self._branches)

    # ---------------------------------------------------------------- measuring

    def compare(self, other: Session | str | int | None = None, *, seconds: float | None = 1.0) -> Comparison:
        """What is different here from ``other``: a branch or its name, a version's number, by default the captured
        graph.

        Both are built and run in turns, for about ``seconds`` each, on a device by its own clock; None compares
        without. A version whose operators are not lowered yet is measured as the recipe ``none`` finishes it, one
        whose kernels are not scheduled for its device as ``cuda-kernels`` does.

        Raises SessionError for a version that is not there; BuildError and what a run raises.
        """
        name, version = self._other(other)
        names = (name, f"{self.name}, version {self._at.number}")
        with progress.phase("compare"):
            return compare(self._subject, names, (version, self._at), seconds)

    def _other(self, other: Session | str | int | None) -> tuple[str, Version]:
        if other is None:
            return "captured", self._at.line()[0]
        if isinstance(other, int):
            versions = {v.number: v for s in self._branches.values() for v in (*s.at.line(), *s.undone)}
            if other not in versions:
                raise SessionError(f"there is no version {other}; there are {', '.join(map(str, sorted(versions)))}")
            return f"version {other}", versions[other]
        if isinstance(other, str):
            if other not in self._branches:
                listed = f"no branch is called {other!r}; there are: {', '.join(self._branches)}"
                raise SessionError(listed + did_you_mean(other, self._branches))
            other = self._branches[other]
        if not isinstance(other, Session):
            raise SessionError(f"compare({other!r}): expected a branch, its name or a version's number")
        if other.at.line()[0] is not self._at.line()[0]:
            raise SessionError(f"{other!r} began at another captured graph; compare branches of one session")
        return f"{other.name}, version {other.at.number}", other.at

    def measure(self, kernel: str | int, *, seconds: float = 0.5) -> KernelMeasurement:
        """One kernel, called as in the report or by its place there, alone for about ``seconds``: its time beside its
        bytes and operations.

        Raises DaceoptError, with the labels that there are, for a name that fits none or several; Unsupported for an
        operator that is not lowered yet, and for what does not stand alone.
        """
        graph, position, row = self._place_of(kernel)
        machine = self.report(code=False).machine
        assert machine is not None
        with progress.phase("measure"):
            place = MeasuringPlace(self._subject.device, machine)
            return measure_alone(graph, position, row, place, self._at.sizes, seconds)

    def code(self, kernel: str | int) -> list[Shown]:
        """C++ and schedule of one kernel, called as in the report or by its place there; libraries may be several.

        Raises as ``measure`` does.
        """
        graph, position, _ = self._place_of(kernel)
        return code_alone(graph, position)

    def _place_of(self, kernel: str | int) -> tuple[Graph, int, KernelRow]:
        """The graph of a kernel, its position there and its row."""
        report = self.report(code=False)
        if isinstance(kernel, int) and 0 <= kernel < len(report.kernels):
            row = report.kernels[kernel]
            position = kernel - report.kernels.index(report.of(row.direction)[0])
        elif isinstance(kernel, str):
            row = report.kernel(kernel)
            position = report.of(row.direction).index(row)
        else:
            raise SessionError(f"{kernel!r} is no kernel; expected a label, a part of it, or a place in the report")
        graph = dict(self._at.program.by_direction())[row.direction]
        if is_operator(graph.nodes()[position]):
            raise Unsupported(
                f"{row.label} is an operator, not lowered yet; apply('lower-operators') makes kernels of it"
            )
        return graph, position, row

    def report(self, *, measure: bool = False, code: bool = True) -> Report:
        """The version as ``explain`` reports on a model: kernels, what moves, memory, steps.

        ``measure``: build it and run it kernel by kernel. ``code``: with schedules and C++, where it is lowered.
        """
        key = self._at.number, self.name, measure, code
        if key not in self._reports:
            with progress.phase("report"):
                self._reports[key] = report_of(self._subject, self._at, self.name, measure, code)
        return self._reports[key]

    # ---------------------------------------------------------------- keeping and showing

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the steps as a recipe file, which replays on this model and others; returns its path.

        The file says what belongs to this model alone. Raises SessionError for steps that no file can name.
        """
        target = Path(path)
        target.write_text(recipe_file(target.stem, self._at, self.title), encoding="utf-8")
        return target

    def _state(self) -> SessionState:
        return SessionState(self.title, self.name, self.notes, self._at, self.undone, self.branches)

    def html(self, *, measure: bool = False) -> str:
        """The walk, and the report on this version, as one HTML document that needs no other file."""
        return to_document(self.report(measure=measure), page(self._state()))

    def __str__(self) -> str:
        return to_text(self._state())

    def _repr_html_(self) -> str:
        """The same for a notebook, of large models without the code, which takes a while to print."""
        return to_fragment(self.report(code=self._at.nodes <= _MOST_SHOWN), page(self._state()))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __repr__(self) -> str:
        return f"<Session {self.name!r} on {self.title}, version {self._at.number}, {len(self.path)} steps>"
