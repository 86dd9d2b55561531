"""Thresholds of schedules follow from a machine's cores and caches, and from nothing that changes from run to run."""

from __future__ import annotations

from typing import Any

import dace
import pytest

from daceopt import cost, recipes
from daceopt import system as facts
from daceopt.cost import limits as model
from daceopt.cost.limits import Limits, assume, limits
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.schedule.schedule_text import text
from daceopt.passes.runner import Runner

REFERENCE, LARGE = Limits(2, 32 << 10), Limits(64, 128 << 10)


def _schedule(shape: tuple[int, ...], build: Any, machine: Limits, recipe: Any = None) -> str:
    graph = Graph("test")
    x = graph.add_input("x", shape, dace.float32)
    graph.add_output(build(Builder(graph), x))
    with assume(machine):
        Runner(recipe or recipes.get("cpu"), "structure").run(graph, levels=("hardware",))
    return text(graph.kernels()[0].tree)


def doubled(b: Builder, x: str) -> str:
    return str(b.elementwise(lambda v: v * 2, x))


def turned(b: Builder, x: str) -> str:
    return b.copy(b.transpose(x, (1, 0)))


def columns(b: Builder, x: str) -> str:
    return str(b.reduce("sum", None, x, axes=(0,)))


def test_the_reference_machine() -> None:
    found = REFERENCE
    assert (found.worthwhile, found.few, found.enough) == (1 << 15, 16, 64)
    assert (found.accumulators, found.columns, found.block, found.edge) == (4096, 512, 4096, 32)
    assert Limits(2, 48 << 10) != found
    same = ("worthwhile", "accumulators", "columns", "block", "edge")
    assert all(getattr(Limits(2, 48 << 10), n) == getattr(found, n) for n in same)


def test_a_larger_machine_takes_larger_pieces() -> None:
    assert LARGE.worthwhile > REFERENCE.worthwhile
    assert (LARGE.few, LARGE.enough, LARGE.edge, LARGE.block) == (512, 2048, 64, 16384)


@pytest.mark.parametrize("l1", [1, 100, 8 << 10, 1 << 20])
def test_sizes_are_never_nothing(l1: int) -> None:
    found = Limits(1, l1)
    assert min(found.accumulators, found.block, found.edge) >= 1


def test_when_threads_are_worth_it() -> None:
    assert "parallel" in _schedule((256, 256), doubled, REFERENCE)
    assert "parallel" not in _schedule((256, 256), doubled, LARGE)
    assert "parallel" in _schedule((1024, 1024), doubled, LARGE)


def test_tiles_of_transpositions_and_columns() -> None:
    assert "for i1 < 32:" in _schedule((640, 640), turned, REFERENCE)
    assert "for i1 < 64:" in _schedule((640, 640), turned, LARGE)
    assert "vector for i1 < 512" in _schedule((64, 8192), columns, REFERENCE)


def test_an_option_comes_first() -> None:
    recipe = recipes.get("cpu").without("transposition-tiling").before("threading", "transposition-tiling{size=16}")
    assert "for i1 < 16:" in _schedule((640, 640), turned, REFERENCE, recipe)
    assert "threading\n" in f"{recipes.get('cpu')}\n"


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """From facts alone, which the keys of the cache hold; nothing is measured."""

    def refuse(*_: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("daceopt.cost.machine.measure", refuse)
    token = model._assumed.set(None)
    try:
        found = limits()
        assert found is limits()
        assert (found.cores, found.l1) == (facts.cores(), facts.caches().l1 or 32 << 10)
    finally:
        model._assumed.reset(token)


def test_a_machine_model_has_its_own() -> None:
    machine = cost.Machine("model", 8, 64 << 10, 1 << 20, 0, ((1, 1.0),), 1.0)
    assert machine.limits == Limits(8, 64 << 10)


def test_keys_hold_what_the_thresholds_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts.fingerprint()
    facts.fingerprint.cache_clear()
    monkeypatch.setattr(facts, "caches", lambda: facts.Caches(1, 2, 3))
    try:
        assert facts.fingerprint() != before
    finally:
        facts.fingerprint.cache_clear()
