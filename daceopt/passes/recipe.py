"""Recipe: a named, ordered list of transformations."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.passes.catalogue import Registry
from daceopt.passes.transform import DIFFERENTIATE, LEVELS, Transformation, parse_step, transformations
from daceopt.store import identity

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph
    from daceopt.passes.runner import After, Before
    from daceopt.passes.step import Step

_BEFORE = ("coarse", "lower", "local")
_AT_SITE = "at-site"  # a step at one of its sites: it is that step's source that counts
_PLACEMENT = "device-placement"
_AFTER = ("lower", "layout", "local", "hardware")  # fusion looks at how loops walk memory, so layouts come first


def as_step(step: Transformation | type[Transformation] | str) -> Transformation:
    """A transformation from an instance, a class, or text like ``map-tiling{size=32}``. Raises DaceoptError."""
    if isinstance(step, str):
        parse = _built_in if transformations.is_built_in(_step_name(step)) else Transformation.parse
        return parse(step)
    if isinstance(step, type) and issubclass(step, Transformation):
        return step()
    if isinstance(step, Transformation):
        return step
    raise DaceoptError(f"recipe step {step!r}: expected a Transformation or its name, found {type(step).__name__}")


# a recipe is read several times on its way; the user's own steps may be replaced
_built_in = lru_cache(None)(Transformation.parse)


@dataclass(frozen=True)
class Edit:
    """What somebody changed of a recipe: the method that does it, and its arguments."""

    method: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, recipe: Recipe) -> Recipe:
        """The same change of another recipe. Raises DaceoptError where that has no such place."""
        edited: Recipe = getattr(recipe, self.method)(*self.arguments, **self.options)
        return edited


@dataclass(frozen=True)
class Recipe:
    """Transformations in order of level, given as instances, classes or text. Immutable: edits give a new one.

    Text is looked up when the recipe is first used, so that naming a recipe imports nothing. ``chosen``: the choice
    among recipes from whose first one it was made by ``edits``.
    """

    name: str
    steps: tuple[Transformation | str, ...] = ()
    chosen: str = field(default="", compare=False, repr=False, kw_only=True)
    edits: tuple[Edit, ...] = field(default=(), compare=False, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        name: Any = self.name  # both are what a file of the user's says
        own_steps: Any = self.steps
        if not isinstance(name, str):
            raise DaceoptError(f"recipe {name!r}: expected a name, found {type(name).__name__}")
        if isinstance(own_steps, str) or not isinstance(own_steps, Iterable):
            raise DaceoptError(f"recipe {name}: expected a tuple of steps, found {own_steps!r}")
        steps = tuple(s if isinstance(s, str) else as_step(s) for s in own_steps)
        object.__setattr__(self, "steps", steps)

    def resolve(self) -> tuple[Transformation, ...]:
        """The steps as transformations. Raises DaceoptError for unknown names or levels out of order."""
        steps = tuple(as_step(s) for s in self.steps)
        _check_order(self.name, steps)
        return steps

    def __iter__(self) -> Iterator[Transformation]:
        return iter(self.resolve())

    def __len__(self) -> int:
        return len(self.steps)

    def before(self, name: str, *steps: object) -> Recipe:
        """A recipe with ``steps`` inserted before the first step called ``name``."""
        at = self._index(name)
        return self._edit([*self.steps[:at], *steps, *self.steps[at:]], Edit("before", (name, *steps)))

    def after(self, name: str, *steps: object) -> Recipe:
        """A recipe with ``steps`` inserted after the last step called ``name``."""
        at = self._index(name, last=True) + 1
        return self._edit([*self.steps[:at], *steps, *self.steps[at:]], Edit("after", (name, *steps)))

    def without(self, name: str) -> Recipe:
        """A recipe without any step called ``name``."""
        self._index(name)
        return self._edit([s for s in self.steps if _step_name(s) != name], Edit("without", (name,)))

    def with_options(self, name: str, **options: object) -> Recipe:
        """A recipe in which every step called ``name`` has these options, and its others as before."""
        self._index(name)
        steps = [as_step(s).with_changes(options) if _step_name(s) == name else s for s in self.steps]
        return self._edit(steps, Edit("with_options", (name,), options))

    def __add__(self, other: Recipe | Transformation | str) -> Recipe:
        """A recipe with one more step, the last of its level, or with all steps of another recipe.

        Where it matters, a single local step is after the differentiation; use ``before`` to place it elsewhere.
        """
        edit = Edit("__add__", (other,))
        if not isinstance(other, Recipe):
            step = as_step(other)
            other = Recipe("", (step,) if step.level in ("coarse", DIFFERENTIATE) else (DIFFERENTIATE, step))
        early = _by_level((*self.before_differentiation().steps, *other.before_differentiation().steps), _BEFORE)
        late = _by_level((*self.after_differentiation().steps, *other.after_differentiation().steps), _AFTER)
        return self._edit([*early, self._differentiating(), *late], edit)

    def run(
        self,
        subject: Graph | Program,
        *,
        before: Before | None = None,
        after: After | None = None,
        verify: str | None = None,
        inputs: dict[str, np.ndarray] | None = None,
    ) -> list[Step]:
        """Apply the steps to a graph or program in place; returns what each did. A choice runs its first recipe.

        ``before(transformation, graph)`` is called before each step and each direction that it edits,
        ``after(step, graph)`` behind it with the record; what they raise stops the recipe. ``verify`` and ``inputs`` as
        in :class:`daceopt.passes.runner.Runner`. Raises VerificationError when a step breaks a graph.
        """
        from daceopt.passes.runner import Runner

        return Runner(self, verify, inputs=inputs, before=before, after=after).run(subject)

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
            digest.update(f"{step}\n{_source_behind(step)}\n".encode())
        return digest.hexdigest()

    def _edit(self, steps: Iterable[Any], *edits: Edit) -> Recipe:
        recipe = replace(self, steps=tuple(steps), edits=(*self.edits, *edits))
        recipe.resolve()
        return recipe

    def _index(self, name: str, last: bool = False) -> int:
        places = [k for k, s in enumerate(self.steps) if _step_name(s) == name]
        if not places:
            names = list(dict.fromkeys(map(_step_name, self.steps)))
            listed = f"recipe {self.name} has no step {name!r}; it has: {', '.join(names)}"
            raise DaceoptError(listed + did_you_mean(str(name), names))
        return places[-1 if last else 0]

    def with_differentiation(self) -> Recipe:
        """The recipe itself, or with the step that differentiates where its levels let it be."""
        first, last = self._split()
        return self if first < last else self._edit([*self.steps[:first], DIFFERENTIATE, *self.steps[first:]])

    def within(self, budget: int | str) -> Recipe:
        """The recipe with a memory budget for what it differentiates."""
        return self.with_differentiation().with_options(DIFFERENTIATE, budget=budget)

    @property
    def budget(self) -> int | str | None:
        """Its memory budget, as it was given."""
        first, last = self._split()
        step = self.steps[first] if first < last else DIFFERENTIATE
        return None if step == DIFFERENTIATE else as_step(step).budget  # type: ignore[attr-defined]

    @property
    def target(self) -> str:
        """Where its steps place graphs."""
        placed = next((step for step in reversed(self.steps) if _step_name(step) == _PLACEMENT), None)
        return "cpu" if placed is None else as_step(placed).target  # type: ignore[attr-defined]

    def _differentiating(self) -> Transformation | str:
        first, last = self._split()
        return self.steps[first] if first < last else DIFFERENTIATE

    def _split(self) -> tuple[int, int]:
        """Where the part before differentiation ends and the part after it begins."""
        names = [_step_name(s) for s in self.steps]
        if DIFFERENTIATE in names:
            at = names.index(DIFFERENTIATE)
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
            listed = f"{step.name} has level {step.level!r}: expected one of {', '.join(LEVELS)}"
            raise DaceoptError(listed + did_you_mean(str(step.level), LEVELS))
    at = next((k for k, s in enumerate(steps) if s.level == DIFFERENTIATE), None)
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


def _source_behind(step: Transformation | str) -> str:
    """What a step's text alone does not say: the source of what is not daceopt's own."""
    if _step_name(step) == _AT_SITE:
        inner = parse_step(step)[1].get("step") if isinstance(step, str) else vars(step)["step"]
        return _source_behind(inner) if inner else ""
    if isinstance(step, str) and transformations.is_built_in(_step_name(step)):
        return ""
    return _foreign_source(as_step(step))


def _foreign_source(step: Transformation) -> str:
    """What stands for a step: its class and its options; of daceopt's own, which their text stands for, functions among
    the options."""
    if not identity.is_own(type(step).__module__):
        return identity.text_of(step)
    if step.defined_by is not type(step):
        return identity.text_of(step.defined_by)
    values = [v for option in vars(step).values() for v in (option if isinstance(option, tuple) else (option,))]
    functions = [v for v in values if callable(v)]
    return identity.text_of(functions) if functions else ""


def _definitions_in(module: ModuleType) -> dict[str, Recipe]:
    return {r.name: r for r in vars(module).values() if isinstance(r, Recipe)}


recipes = Registry("recipe", "daceopt.recipes", _definitions_in)
