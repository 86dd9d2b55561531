"""Recipe: a named, ordered list of transformations; Runner: applies it step by step, verified, timed and recorded."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from daceopt import identity, progress, trace
from daceopt.errors import DaceoptError, VerificationError
from daceopt.registry import transformations
from daceopt.transform import LEVELS, NearMiss, Site, Transformation

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.graph import Graph

_T = TypeVar("_T")
_BEFORE = ("coarse", "lower", "local")
_AFTER = ("lower", "layout", "local", "hardware")  # fusion looks at how loops walk memory, so layouts come first
_VERIFY = (None, "structure", "numerics")


@dataclass(frozen=True)
class Differentiate(Transformation):
    """The step at which the pipeline derives the backward graph; what stands after it runs on both graphs."""

    level: ClassVar[str] = "differentiate"

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """No site: the pipeline differentiates between the two parts of a recipe."""
        return iter(())


def as_step(step: Transformation | type[Transformation] | str) -> Transformation:
    """A transformation from an instance, a class, or text like ``map-tiling{size=32}``. Raises DaceoptError."""
    if isinstance(step, str):
        return _built_in(step) if transformations.is_built_in(_step_name(step)) else _parsed(step)
    if isinstance(step, type) and issubclass(step, Transformation):
        return step()
    if isinstance(step, Transformation):
        return step
    raise DaceoptError(f"recipe step {step!r}: expected a Transformation or its name, found {type(step).__name__}")


def _parsed(step: str) -> Transformation:
    return Differentiate() if step.strip() == Differentiate.kebab_name() else Transformation.parse(step)


_built_in = lru_cache(None)(_parsed)  # a recipe is read several times on its way; the user's own steps may be replaced


@dataclass(frozen=True)
class Recipe:
    """Transformations in order of level, given as instances, classes or text. Immutable: edits give a new one.

    Text is looked up when the recipe is first used, so that naming a recipe imports nothing.
    """

    name: str
    steps: tuple[Transformation | str, ...] = ()

    def __post_init__(self) -> None:
        steps = tuple(s if isinstance(s, str) else as_step(s) for s in self.steps)
        object.__setattr__(self, "steps", steps)

    def resolved(self) -> tuple[Transformation, ...]:
        """The steps as transformations. Raises DaceoptError for unknown names or levels out of order."""
        steps = tuple(as_step(s) for s in self.steps)
        _check_order(self.name, steps)
        return steps

    def __iter__(self) -> Iterator[Transformation]:
        return iter(self.resolved())

    def __len__(self) -> int:
        return len(self.steps)

    def before(self, name: str, *steps: Any) -> Recipe:
        """A recipe with ``steps`` inserted before the first step called ``name``."""
        at = self._index(name)
        return self._edited([*self.steps[:at], *steps, *self.steps[at:]])

    def after(self, name: str, *steps: Any) -> Recipe:
        """A recipe with ``steps`` inserted after the last step called ``name``."""
        at = self._index(name, last=True) + 1
        return self._edited([*self.steps[:at], *steps, *self.steps[at:]])

    def without(self, name: str) -> Recipe:
        """A recipe without any step called ``name``."""
        self._index(name)
        return self._edited([s for s in self.steps if _step_name(s) != name])

    def __add__(self, other: Recipe | Transformation | str) -> Recipe:
        """A recipe with one more step, the last of its level, or with all steps of another recipe.

        Where it matters, a single local step stands after the differentiation; use ``before`` to place it elsewhere.
        """
        if not isinstance(other, Recipe):
            step = as_step(other)
            other = Recipe("", (step,) if step.level in ("coarse", "differentiate") else (Differentiate(), step))
        early = _by_level((*self.before_differentiation().steps, *other.before_differentiation().steps), _BEFORE)
        late = _by_level((*self.after_differentiation().steps, *other.after_differentiation().steps), _AFTER)
        return self._edited([*early, Differentiate(), *late])

    def before_differentiation(self) -> Recipe:
        """The steps that run on the forward graph alone."""
        return Recipe(self.name, self.steps[: self._split()[0]])

    def after_differentiation(self) -> Recipe:
        """The steps that run on the forward and the backward graph."""
        return Recipe(self.name, self.steps[self._split()[1] :])

    def __str__(self) -> str:
        return f"{self.name}:\n" + "\n".join(f"  {step}" for step in self.steps)

    def fingerprint(self) -> str:
        """Digest of the steps, their options and the source text of transformations that are not daceopt's own.

        Imports none of daceopt's own: a warm start asks for it.
        """
        digest = hashlib.sha256()
        for step in self.steps:
            own = isinstance(step, str) and (
                transformations.is_built_in(_step_name(step)) or _step_name(step) == Differentiate.kebab_name()
            )
            digest.update(f"{step}\n{'' if own else _foreign_source(as_step(step))}\n".encode())
        return digest.hexdigest()

    def _edited(self, steps: Iterable[Any]) -> Recipe:
        recipe = replace(self, steps=tuple(steps))
        recipe.resolved()
        return recipe

    def _index(self, name: str, last: bool = False) -> int:
        found = [k for k, s in enumerate(self.steps) if _step_name(s) == name]
        if not found:
            raise DaceoptError(f"recipe {self.name} has no step {name!r}; it has: {', '.join(map(str, self.steps))}")
        return found[-1 if last else 0]

    def _split(self) -> tuple[int, int]:
        """Where the part before differentiation ends and the part after it begins."""
        names = [_step_name(s) for s in self.steps]
        if Differentiate.kebab_name() in names:
            at = names.index(Differentiate.kebab_name())
            return at, at + 1
        levels = [as_step(s).level for s in self.steps]
        at = next((k for k, level in enumerate(levels) if level not in _BEFORE), len(levels))
        return at, at


def _step_name(step: Transformation | str) -> str:
    return step.split("{")[0].strip() if isinstance(step, str) else step.name


def _by_level(steps: Iterable[Transformation | str], order: tuple[str, ...]) -> list[Transformation]:
    """Stable; what does not belong into this part goes last, for the check to find."""
    return sorted(map(as_step, steps), key=lambda s: order.index(s.level) if s.level in order else len(order))


def _check_order(name: str, steps: tuple[Transformation, ...]) -> None:
    for step in steps:
        if step.level not in LEVELS:
            raise DaceoptError(f"{step.name} has level {step.level!r}: expected one of {', '.join(LEVELS)}")
    at = next((k for k, s in enumerate(steps) if s.level == "differentiate"), None)
    parts = [(steps, LEVELS)] if at is None else [(steps[:at], _BEFORE), (steps[at + 1 :], _AFTER)]
    for part, allowed in parts:
        _check_part(name, part, allowed)


def _check_part(name: str, steps: tuple[Transformation, ...], allowed: tuple[str, ...]) -> None:
    for step in steps:
        if step.level not in allowed:
            order = f"{step} ({step.level}) is misplaced"
            raise DaceoptError(f"recipe {name}: {order}; expected one of {', '.join(allowed)}")
    for first, second in itertools.pairwise(steps):
        if allowed.index(first.level) > allowed.index(second.level):
            order = f"{second} ({second.level}) stands after {first} ({first.level})"
            raise DaceoptError(f"recipe {name}: {order}; expected the order {', '.join(allowed)}")


def _foreign_source(step: Transformation) -> str:
    """What stands for a step: its class and its options; empty for daceopt's own, which their text stands for."""
    return "" if identity.is_own(type(step).__module__) else identity.text_of(step)


# ---------------------------------------------------------------- running


@dataclass
class Step:
    """What one step of a recipe did.

    Bytes are symbolic if shapes are; ``error`` is the numeric error after the step (with ``verify="numerics"``);
    ``graph`` is the name of the graph, which tells the two directions apart.
    """

    name: str
    level: str
    seconds: float
    sites: list[str]
    near_misses: list[str]
    nodes_before: int
    nodes_after: int
    bytes_before: Any
    bytes_after: Any
    error: float | None = None
    graph: str = ""

    def __str__(self) -> str:
        effect = f"{len(self.sites)} sites, {self.nodes_before} -> {self.nodes_after} nodes"
        return f"{self.level:<13} {self.name:<32} {self.seconds * 1e3:8.1f} ms  {effect}"


class Runner:
    """Applies a recipe to graphs and keeps the history of what it did.

    ``verify``: None (cheap checks only), "structure" (the SDFG is validated around every step) or "numerics" (the graph
    is also executed on ``inputs``, array name -> values, random where absent, and compared with float64).
    ``progress``: called with each ``Step``.
    """

    def __init__(
        self,
        recipe: Recipe,
        verify: str | None = None,
        *,
        inputs: dict[str, np.ndarray] | None = None,
        progress: Callable[[Step], None] | None = None,
    ):
        if verify not in _VERIFY:
            raise DaceoptError(f"verify={verify!r}: expected one of {', '.join(map(repr, _VERIFY))}")
        self.recipe = recipe
        self.history: list[Step] = []
        self._verify, self._inputs, self._progress = verify, inputs, progress

    def run(self, graph: Graph, levels: Iterable[str] | None = None, part: str = "all") -> list[Step]:
        """Apply the steps in place; returns their records, which also join ``history``.

        ``part``: "all", or "before" or "after" the differentiation. ``levels`` restricts to some levels.
        Raises VerificationError when a step breaks the graph, its numbers, or fails.
        """
        wanted = LEVELS if levels is None else tuple(levels)
        self.recipe.resolved()  # checks the whole; a part alone has no order of its own
        chosen = map(as_step, self._part(part).steps)
        steps = [s for s in chosen if s.level in wanted and not isinstance(s, Differentiate)]
        guard = self._guard(graph)
        size, moved = len(graph.nodes()), bytes_moved(graph)
        done: list[Step] = []
        with progress.steps(len(steps)) as counter:
            for transformation in steps:
                step = self._apply(transformation, graph, guard, size, moved)
                size, moved = step.nodes_after, step.bytes_after
                done.append(step)
                trace.write_step(len(self.history) + len(done), step, graph)
                counter.advance(step.name)
                if self._progress is not None:
                    self._progress(step)
        self.history.extend(done)
        return done

    def _part(self, part: str) -> Recipe:
        parts = {
            "all": lambda: self.recipe,
            "before": self.recipe.before_differentiation,
            "after": self.recipe.after_differentiation,
        }
        if part not in parts:
            raise DaceoptError(f"part={part!r}: expected one of {', '.join(parts)}")
        return parts[part]()

    def _guard(self, graph: Graph) -> Any:
        from daceopt import verification

        if self._verify == "numerics":
            return verification.Numerics(graph, self._inputs)
        return verification.Structure(full=self._verify == "structure")

    def _apply(self, transformation: Transformation, graph: Graph, guard: Any, size: int, moved: Any) -> Step:
        guard.before(graph)
        _named(transformation, graph, guard.looking)
        start = time.perf_counter()
        outcome = _named(transformation, graph, type(transformation).run)
        seconds = time.perf_counter() - start
        error = guard.after(transformation, graph, outcome)
        changed = bool(outcome.sites) and transformation.changes_dataflow
        return Step(
            str(transformation),
            transformation.level,
            seconds,
            outcome.sites,
            outcome.near_misses,
            size,
            len(graph.nodes()) if changed else size,
            moved,
            bytes_moved(graph) if changed else moved,
            error,
            graph.sdfg.name,
        )


def _named(transformation: Transformation, graph: Graph, action: Callable[[Transformation, Graph], _T]) -> _T:
    """``action``; what it raises by mistake is told with the name of the step."""
    try:
        return action(transformation, graph)
    except DaceoptError:
        raise
    except Exception as error:
        raise VerificationError(
            f"step {transformation} failed on graph {graph.sdfg.name}: {type(error).__name__}: {error}; "
            "run `python -m daceopt bisect` to find the site"
        ) from error


def bytes_moved(graph: Graph) -> Any:
    """Bytes that the graph's nodes read and write: an int, or an expression where shapes are symbolic."""
    from daceopt.cost import data_movement

    total = data_movement(graph).total
    return int(total) if total.is_Integer else total
