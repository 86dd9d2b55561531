"""What a search tries on a recipe: single changes of it that the cost model cannot judge, or judges in doubt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from daceopt.errors import DaceoptError
from daceopt.passes.recipe import Edit, Recipe

if TYPE_CHECKING:
    from daceopt.cost.limits import Limits

_METHODS = ("with_options", "without", "before")
_REPLACED = (("map-fusion", "fusion-exploration{score='roofline'}"),)

_LEFT_OUT = ("layout-search", "weight-packing", "attention-tiling", "product-transposition", "weight-holding")
"""Steps that pay as measured on other machines."""

_SET = (
    ("horizontal-product-fusion", "copied", (1.0,)),
    ("differentiate", "policy", ("store",)),
    ("on-the-fly-fusion", "recompute", (4.0,)),
    ("convolution-opening", "taps", (0,)),
)


@dataclass(frozen=True)
class Variation:
    """Edits of a recipe that belong together; ``text``: what they are, in a few words."""

    text: str
    edits: tuple[Edit, ...]

    def on(self, recipe: Recipe) -> Recipe:
        """The recipe so changed. Raises DaceoptError where it has no such place."""
        for edit in self.edits:
            recipe = edit.on(recipe)
        return recipe

    def to_json(self) -> list[object]:
        """As :meth:`from_json` reads it."""
        return [self.text, [[e.method, list(e.arguments), dict(e.options)] for e in self.edits]]

    @classmethod
    def from_json(cls, data: Any) -> Variation:
        """Raises ValueError for what :meth:`to_json` did not write."""
        try:
            words, rows = data
            edits = tuple(Edit(str(method), tuple(map(str, names)), dict(options)) for method, names, options in rows)
        except TypeError as error:
            raise ValueError(f"{data!r} is no change of a recipe") from error
        if not isinstance(words, str) or any(edit.method not in _METHODS for edit in edits):
            raise ValueError(f"{data!r} is no change of a recipe")
        return cls(words, edits)


def variations(recipe: Recipe) -> list[Variation]:
    """The changes of a recipe that are worth trying, those first that change most."""
    steps = [step.name for step in recipe]
    candidates = [*_structural(steps), *_numbers(steps)]
    return [v for v in candidates if _applies(v, recipe)]


def _structural(steps: list[str]) -> Iterator[Variation]:
    for old, new in _REPLACED:
        if old in steps:
            yield Variation(f"{new} instead of {old}", (Edit("before", (old, new)), Edit("without", (old,))))
    yield from (Variation(f"without {step}", (Edit("without", (step,)),)) for step in _LEFT_OUT if step in steps)
    for step, option, values in _SET:
        if step in steps:
            yield from (_setting(step, {option: value}) for value in values)


def _numbers(steps: list[str]) -> Iterator[Variation]:
    """Sizes that come from the model of the machine, scaled."""
    from daceopt.cost.limits import limits

    for step, option, value, factors in _sizes_by_machine(limits()):
        if step in steps:
            yield from (_setting(step, {option: max(1, int(value * factor))}) for factor in factors)


def _sizes_by_machine(own: Limits) -> tuple[tuple[str, str, int, tuple[float, ...]], ...]:
    """Step, option, what the machine's model says, and by how much it may be off."""
    return (
        ("threading", "work", own.worthwhile, (0.25, 4)),
        ("parallelism-stitching", "blocks", 4, (0.25, 4)),
        ("parallelism-stitching", "branches", 7, (4,)),
        ("long-loop-splitting", "size", own.block, (0.25, 4)),
        ("reduction-ordering", "columns", own.columns, (0.25, 4)),
        ("transposition-tiling", "size", own.edge, (0.5, 2)),
        ("threading", "enough", own.enough, (0.25, 4)),
        ("block-mapping", "threads", 256, (0.5, 2)),
        ("grid-reduction", "blocks", 1024, (0.25,)),
    )


def _setting(step: str, options: Mapping[str, object]) -> Variation:
    text = ", ".join(f"{option}={value}" for option, value in options.items())
    return Variation(f"{step} with {text}", (Edit("with_options", (step,), options),))


def _applies(variation: Variation, recipe: Recipe) -> bool:
    """Is the recipe another one with it? Not where a level or an option forbids it."""
    try:
        return variation.on(recipe).fingerprint() != recipe.fingerprint()
    except DaceoptError:
        return False
