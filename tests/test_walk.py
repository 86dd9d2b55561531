"""The walk of docs/architecture.md is the one that a first call takes: through these rooms, and no others."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import daceopt
from tests.test_import_layers import FLOORS, HOUSE

ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
ROOMS = {room for floor in FLOORS for room in floor.split()}
HELPERS = {room for floor in FLOORS[: FLOORS.index("ir.scalar")] for room in floor.split()}


@cache
def _room(file: str) -> str | None:
    """The room of a file of daceopt's; None of others."""
    for package, folder in sorted(HOUSE.items(), reverse=True):
        if Path(file).is_relative_to(folder):
            inside = Path(file).relative_to(folder).with_suffix("").parts
            names = [*package.split(".")[1:], *inside]
            return next((n for k in (2, 1) if (n := ".".join(names[:k])) in ROOMS), None)
    return None


def _rooms_called(call: Callable[[], Any]) -> set[str]:
    """The rooms whose functions run in a call."""
    rooms: set[str] = set()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>" and (room := _room(frame.f_code.co_filename)):
            rooms.add(room)

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return rooms


def _listed(before: str) -> set[str]:
    (text,) = re.findall(rf"{before}([^.;:]*)[.;:]", ARCHITECTURE.read_text())
    return {room.strip().strip("`") for room in text.replace(" and ", ", ").split(",")}


def test_a_first_call_passes_the_rooms_of_the_walk(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache))
    model = daceopt.optimized_module(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), recipe="cpu", fallback="raise")
    called = _rooms_called(lambda: model(torch.randn(3, 6)))
    work = {room for room in called - HELPERS if not room.startswith("ir.")}
    walk = _listed("the picture below they are: ")
    assert walk <= work <= walk | _listed("the rooms that these ask are "), f"the call went through {sorted(work)}"
