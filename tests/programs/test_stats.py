"""Statistics come from the records alone: sums over both directions, sizes put in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daceopt.programs.stats import Effect, Stats, effect, number, sizes_of
from daceopt.runtime.arithmetic import evaluate
from daceopt.runtime.manifest import Manifest, Symbol


def _record(graph: str, name: str, nodes: tuple[int, int], moved: tuple[Any, Any]) -> dict[str, Any]:
    return {
        "graph": graph,
        "name": name,
        "nodes_before": nodes[0],
        "nodes_after": nodes[1],
        "bytes_before": moved[0],
        "bytes_after": moved[1],
    }


TRAINING = [
    _record("f", "constant-folding", (9, 8), (900, 800)),
    _record("f", "lower-operators{keep_rules=True}", (8, 20), (800, 2000)),
    _record("f", "tasklet-fusion", (20, 10), (2000, 1000)),
    _record("f", "lower-operators", (10, 13), (1000, 1300)),
    _record("f", "map-fusion", (13, 4), (1300, 500)),
    _record("f_backward", "lower-operators", (30, 31), (3000, 3100)),
    _record("f_backward", "map-fusion", (31, 6), (3100, 700)),
]


def test_before_is_lowered_but_not_fused_and_directions_add_up() -> None:
    assert effect(TRAINING) == Effect((20 + 3 + 31, 4 + 6), (2000 + 300 + 3100, 500 + 700))


def test_a_recipe_without_lowering_starts_where_it_starts() -> None:
    assert effect(TRAINING[:1]) == Effect((9, 8), (900, 800))
    assert effect([]) == Effect()


def test_sizes_are_put_into_the_records() -> None:
    history = [_record("f", "lower-operators", (1, 2), ("4*s0", "8*s0**2 + Min(s0, 3)"))]
    assert effect(history, {"s0": 10}).bytes_moved == (803, 803)
    with pytest.raises(KeyError, match="s0"):
        number("4*s0", {})


def test_sizes_come_from_the_shapes_of_a_call() -> None:
    manifest = Manifest("m", symbols=(Symbol("s0", "input:1", 0),))
    assert sizes_of(manifest, {"input:0": (7,), "input:1": (5, 2)}) == {"s0": 5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*s0 - 1", 9),
        ("s0*(s0 + 1)/2", 15),
        ("-s0 + s0**2", 20),
        ("floor(s0/2)", 2),
        ("ceiling(s0/2) + int_floor(s0, 2)", 5),
        ("Max(3, Min(s0, 4))", 4),
    ],
)
def test_arithmetic(text: str, value: int) -> None:
    assert evaluate(text, {"s0": 5}) == value


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "s0.real", "'a'", "[1]", "True"])
def test_nothing_but_arithmetic_is_evaluated(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        evaluate(text, {"s0": 5})


def _pair(history: list[dict[str, Any]], cached: bool, trains: bool) -> Any:
    executable = SimpleNamespace(manifest=Manifest("m"))
    return SimpleNamespace(
        report={"history": history}, cached=cached, forward=executable, backward=executable if trains else None
    )


def test_the_training_program_is_shown_even_if_inference_was_compiled_later() -> None:
    stats = Stats()
    assert (stats.kernels, stats.bytes_moved) == ((0, 0), (0, 0))
    stats.record(_pair(TRAINING, cached=False, trains=True), {})
    stats.record(_pair(TRAINING[:1], cached=True, trains=False), {})
    assert (stats.programs, stats.cache_hits) == (2, 1)
    assert stats.kernels == (54, 10) and stats.bytes_moved == (5400, 1200)
