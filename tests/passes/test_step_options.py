"""Options of steps: names, types and values that users get wrong are told, whoever wrote the step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from daceopt import recipes
from daceopt.errors import DaceoptError
from daceopt.passes.recipe import Recipe
from daceopt.passes.transform import Transformation


@dataclass(frozen=True)
class Knobs(Transformation):
    """Does nothing, with options of all kinds."""

    count: int = 1
    share: float = 0.5
    title: str = ""
    whole: bool = False
    most: int | None = None
    sizes: int | tuple[int, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    nested: tuple[tuple[str, ...], ...] = ()
    hidden: NoSuchName | int = 3  # type: ignore[name-defined]  # noqa: F821 - as names for type checkers alone


@dataclass(frozen=True)
class Strict(Knobs):
    """Of a user who checks nothing."""

    def __post_init__(self) -> None:
        1 // self.count


RIGHT = [
    ("count=3", "count", 3),
    ("share=2", "share", 2),
    ("share=0.25", "share", 0.25),
    ("whole=True", "whole", True),
    ("most=None", "most", None),
    ("sizes=4", "sizes", 4),
    ("sizes=[4, 5]", "sizes", (4, 5)),
    ("sizes=()", "sizes", ()),
    ("pair=['b', 2]", "pair", ("b", 2)),
    ("nested=[['a', 'b'], ['c']]", "nested", (("a", "b"), ("c",))),
    ("hidden='what the class says'", "hidden", "what the class says"),
]


@pytest.mark.parametrize(("text", "name", "value"), RIGHT, ids=[text for text, *_ in RIGHT])
def test_right_values(text: str, name: str, value: object) -> None:
    options = eval(f"dict({text})")
    step = Knobs.with_options(options)
    assert getattr(step, name) == value and hash(step) == hash(Knobs().with_changes(options))


WRONG = [
    ("count='3'", "knobs: count='3'; expected int, found str"),
    ("count=True", "knobs: count=True; expected int, found bool"),
    ("count=2.5", "knobs: count=2.5; expected int, found float"),
    ("count=None", "knobs: count=None; expected int, found NoneType"),
    ("share='much'", "knobs: share='much'; expected float, found str"),
    ("title=3", "knobs: title=3; expected str, found int"),
    ("whole=1", "knobs: whole=1; expected bool, found int"),
    ("most='all'", "knobs: most='all'; expected int | None, found str"),
    ("sizes=[4, 'x']", "knobs: sizes=(4, 'x'); expected int | tuple[int, ...], found tuple"),
    ("sizes={4}", "knobs: sizes={4}; expected int | tuple[int, ...], found set"),
    ("pair=('a',)", "knobs: pair=('a',); expected tuple[str, int], found tuple"),
    ("nested=('ab',)", "expected tuple[tuple[str, ...], ...], found tuple"),
    ("cuont=3", "knobs has no option 'cuont'; it has count, share"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[text for text, _ in WRONG])
def test_wrong_values(text: str, said: str) -> None:
    options = eval(f"dict({text})")
    for make in (Knobs.with_options, Knobs().with_changes):
        with pytest.raises(DaceoptError) as error:
            make(options)
        assert said in str(error.value)


@dataclass(frozen=True)
class Careful(Knobs):
    """Of a user who says it better."""

    def __post_init__(self) -> None:
        if not isinstance(self.count, int):
            raise DaceoptError(f"count={self.count!r}: expected how often")


def test_what_a_class_says_of_its_values_comes_first() -> None:
    with pytest.raises(DaceoptError, match="^count='x': expected how often$"):
        Careful.with_options({"count": "x"})
    with pytest.raises(DaceoptError, match="careful: title=3; expected str, found int"):
        Careful.with_options({"title": 3})


def test_what_a_class_raises_is_told_with_the_step() -> None:
    with pytest.raises(DaceoptError, match="step strict does not take these options: ZeroDivisionError"):
        Strict.with_options({"count": 0})


def test_defaults_of_all_steps_fit_their_own_types() -> None:
    from daceopt import transformations
    from daceopt.passes.transform import transformations as registry

    for name in transformations.names():
        cls = registry.get(name)
        if not cls.needs_options:
            defaults = {f.name: getattr(cls(), f.name) for f in fields(cls)}
            assert cls.with_options(defaults) == cls()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MapTiling", "expected a form like map-tiling{size=32}; did you mean 'map-tiling'?"),
        ("map_tiling{size=3}", "expected a form like map-tiling{size=32}; did you mean 'map-tiling'?"),
        ("map-tiling{size=3, size=4}", "an option is given twice"),
        ("map-tiling{loops=3}", "map-tiling: loops=3; expected str | tuple[str, ...], found int"),
    ],
)
def test_wrong_text(text: str, said: str) -> None:
    with pytest.raises(DaceoptError) as error:
        Transformation.parse(text)
    assert said in str(error.value)


def test_edits_of_recipes_suggest_the_nearest_step_and_option() -> None:
    cpu = recipes.get("cpu")
    for edit in (cpu.before, cpu.after, cpu.without, cpu.with_options):
        with pytest.raises(DaceoptError, match="recipe cpu has no step 'map-fusio'; .*; did you mean 'map-fusion'?"):
            edit("map-fusio")
    with pytest.raises(DaceoptError, match="differentiate has no option 'budgt'; it has .*; did you mean 'budget'?"):
        cpu.with_options("differentiate", budgt=3)
    tiled = cpu.before("micro-kernel-call", "dace:MapTiling{tile_sizes=[4, 4]}")
    edited = tiled.with_options("dace:MapTiling", tile_sizes=[8, 8])
    assert "dace:MapTiling{tile_sizes=[8, 8]}" in map(str, edited)
    with pytest.raises(DaceoptError, match="dace:MapTiling has no option 'tile_size'"):
        tiled.with_options("dace:MapTiling", tile_size=[8, 8])


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [
        (None, (), "recipe None: expected a name, found NoneType"),
        ("r", "map-fusion", "recipe r: expected a tuple of steps, found 'map-fusion'"),
        ("r", 3, "recipe r: expected a tuple of steps, found 3"),
        ("r", (3,), "expected a Transformation or its name, found int"),
    ],
)
def test_what_is_no_recipe(name: object, steps: object, said: str) -> None:
    with pytest.raises(DaceoptError) as error:
        Recipe(name, steps)  # type: ignore[arg-type]
    assert said in str(error.value)
    with pytest.raises(DaceoptError, match="expected the name of a recipe, found None"):
        recipes.get(None)  # type: ignore[arg-type]
