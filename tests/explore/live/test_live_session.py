"""Live sessions by messages: a whole optimization, several pages, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import daceopt
from daceopt.explore.live.requests import LONGEST, VERBS
from tests.explore.live.pages import FakePage, opened
from tests.explore.sessions import Blocks, lowered, session


@pytest.fixture
def page(tmp_path: Path) -> Iterator[FakePage]:
    with opened(lambda: lowered(2), tmp_path) as found:
        found.ready()
        yield found


def kernels(state: dict[str, Any], label: str) -> list[int]:
    return [k for k, _, name, *_ in state["kernels"] if name == label]


def test_a_whole_optimization(page: FakePage, tmp_path: Path) -> None:
    state = page.get("state")
    first = state["version"]
    assert [v["title"] for v in state["versions"]] == ["captured", "lower-operators"] and state["branch"] == "main"
    outline = page.get("scene", version=first, direction="forward", module=0)
    assert {box["kind"] for box in outline["boxes"]} == {"part", "end"} and outline["lines"]
    gelu = kernels(state, "gelu")[0]
    shown = page.get("kernel", version=first, kernel=gelu)
    assert "s0(i0, i1)" in shown["schedule"] and [loop["name"] for loop in shown["loops"]] == ["i0", "i1"]
    assert shown["roofline"]["intensity"] > 0
    assert "erf" in page.get("code", version=first, kernel=gelu)["source"]
    sites = page.get("sites", version=first, kernel=gelu)
    assert any(s["step"] == "map-fusion" for s in sites["sites"]) and sites["misses"]
    chosen = next(s["site"] for s in sites["sites"] if s["step"] == "map-fusion")
    second = page.get("apply_site", version=first, site=chosen)["version"]
    assert page.get("state")["version"] == second != first
    assert page.get("undo")["version"] == first and page.get("redo")["version"] == second
    page.get("branch", name="other")
    third = page.get("apply_step", version=second, step="vectorization")["version"]
    compared = page.get("compare", other="main", seconds=0.05)
    assert f"version {third}" in compared["text"] and "schedules:" in compared["details"] and compared["speedup"] > 0
    measured = page.get("measure", version=third, kernel=0, seconds=0.05)
    assert measured["roofline"]["timed"] and "median of" in measured["text"]
    assert any(event["event"] == "progress" and event["verb"] == "measure" for event in page.events)
    saved = page.get("save", name="my_path", overwrite=False)["path"]
    assert saved == str(tmp_path / "my_path.py")
    path = [str(step) for step in daceopt.explore(Blocks(2), torch.randn(4, 8), backward=False).apply(saved).path]
    assert path == page.get("state")["path"] and len(path) == 3


def test_a_schedule_by_hand_replays(page: FakePage, tmp_path: Path) -> None:
    state = page.get("state")
    one, other = kernels(state, "gelu")
    at: dict[str, Any] = {"version": state["version"], "kernel": one}
    tried = page.get("try_edit", **at, edit="split", loops=["i1"], value="4")
    assert tried["legal"] and "for i1_block < 4" in tried["text"]
    page.get("apply_edit", **at, edit="split", loops=["i1"], value="4")
    at["version"] = page.get("state")["version"]
    swapped = page.get("try_edit", **at, edit="reorder", loops=["i1_block", "i0"], value="")
    assert swapped["legal"]
    page.get("apply_edit", **at, edit="reorder", loops=["i1_block", "i0"], value="")
    at["version"] = page.get("state")["version"]
    page.get("apply_edit", **at, edit="bind", loops=["i1"], value="vector")
    version = page.get("state")["version"]
    schedule = page.get("kernel", version=version, kernel=one)["schedule"]
    assert schedule.split("\n")[0] == "for i1_block < 4:" and "vector for i1 < 4" in schedule
    assert "block" not in page.get("kernel", version=version, kernel=other)["schedule"], "only the chosen one"
    saved = page.get("save", name="by_hand", overwrite=False)["path"]
    again = daceopt.explore(Blocks(2), torch.randn(4, 8), backward=False).apply(saved)
    assert [str(step) for step in again.path] == page.get("state")["path"]


@pytest.mark.parametrize(
    "edit, loops, value, reason",
    [
        ("reorder", ["i0", "i9"], "", "the loop over i9 does not stand directly inside of the others"),
        ("split", ["i9"], "4", "there is no loop over i9"),
        ("split", ["i0"], "4", "nothing changes"),
        ("bind", ["i0"], "grid", "a grid loop is one of an accelerator"),
    ],
)
def test_edits_that_are_not_legal(page: FakePage, edit: str, loops: list[str], value: str, reason: str) -> None:
    state = page.get("state")
    at: dict[str, Any] = {"version": state["version"], "kernel": kernels(state, "layernormalization")[0]}
    tried = page.get("try_edit", **at, edit=edit, loops=loops, value=value)
    assert not tried["legal"] and reason in tried["text"]
    assert "does not apply there" in page.error("apply_edit", **at, edit=edit, loops=loops, value=value)
    assert page.get("state")["version"] == state["version"]


def test_what_forbids_an_edit_is_named(tmp_path: Path) -> None:
    """The local that threads would share; the loop inside of one over lanes."""
    with opened(lambda: session(1, backward=False).apply("cpu"), tmp_path) as page:
        state = page.ready()
        (fused,) = kernels(state, "add__layernormalization__gelu")
        at: dict[str, Any] = {"version": state["version"], "kernel": fused, "edit": "bind"}
        shared = page.get("try_edit", **at, loops=["i1"], value="parallel")
        assert not shared["legal"] and "threads of the parallel loop over i1 would share the local" in shared["text"]
        nested = page.get("try_edit", **at, loops=["i0"], value="vector")
        assert not nested["legal"] and "i1 stands inside of a vector loop" in nested["text"]


@pytest.mark.parametrize(
    "edit, loops, value, message",
    [
        ("explode", ["i0"], "4", "there is no such edit"),
        ("split", [], "4", "which loops"),
        ("split", ["i0"], "4; import os", "expected a number"),
        ("split", ["i0"], "0", "size of 1 or more"),
        ("bind", ["i0"], "__import__('os')", "expected one of"),
        ("peel", ["i0", "i1"], "1", "peel takes one loop"),
    ],
)
def test_edits_take_names_and_numbers(page: FakePage, edit: str, loops: list[str], value: str, message: str) -> None:
    at: dict[str, Any] = {"version": page.get("state")["version"], "kernel": 0}
    for verb in ("try_edit", "apply_edit"):
        assert message in page.error(verb, **at, edit=edit, loops=loops, value=value)


@pytest.mark.parametrize(
    "message, error",
    [
        ("{", "no JSON"),
        ("[" * 50_000, "no JSON"),
        (" " * (LONGEST + 1), "expected at most"),
        (None, "expected a message"),
        ({"id": -1, "verb": "undo"}, "a number from 0"),
        ({"id": True, "verb": "undo"}, "a number from 0"),
        ({"id": 1, "verb": "__init__"}, "no such verb"),
        ({"id": 1, "verb": ["undo"]}, "no such verb"),
        ({"id": 1, "verb": "undo", "arguments": {"count": 2}}, "undo takes no arguments"),
        ({"id": 1, "verb": "kernel", "arguments": {"version": 0}}, "kernel takes version, kernel"),
        ({"id": 1, "verb": "kernel", "arguments": {"version": 0, "kernel": "0"}}, "kernel of kernel is not"),
        ({"id": 1, "verb": "branch", "arguments": {"name": "a\n"}}, "name of branch is not"),
        ({"id": 1, "verb": "compare", "arguments": {"other": "main", "seconds": float("inf")}}, "seconds of compare"),
        ({"id": 1, "verb": "compare", "arguments": {"other": "main", "seconds": 1e6}}, "seconds of compare"),
    ],
)
def test_messages_that_are_no_requests(page: FakePage, message: object, error: str) -> None:
    assert error in page.message(message)["error"]
    assert page.get("state")["version"] is not None, "the session goes on"


def test_nothing_that_a_page_sends_is_evaluated(page: FakePage, tmp_path: Path) -> None:
    """Texts of steps with options, files and names of files are refused: a page chooses among what it was offered."""
    hacked = tmp_path / "hacked"
    script = tmp_path / "script.py"
    script.write_text(f"open({str(hacked)!r}, 'w')")
    version = page.get("state")["version"]
    for step in (str(script), "./script.py", "dace:MapTiling", "map-tiling{size=4}", f"open({str(hacked)!r},'w')"):
        assert "take one that the page offers" in page.error("apply_step", version=version, step=step)
    for name in ("../out", "/tmp/out", "a.py", ".hidden", "a b", "a/b", "c:d", "x" * 70):
        assert "plain name" in page.error("save", name=name, overwrite=True)
    assert not hacked.exists() and {p.name for p in tmp_path.iterdir()} == {"script.py"}


def test_files_are_not_overwritten_without_consent(page: FakePage, tmp_path: Path) -> None:
    own = tmp_path / "model.py"
    own.write_text("mine = True\n")
    for overwrite in (False, True):
        assert "no recipe of a session" in page.error("save", name="model", overwrite=overwrite)
    assert own.read_text() == "mine = True\n"
    (tmp_path / "link.py").symlink_to(own)
    assert "no recipe of a session" in page.error("save", name="link", overwrite=True)
    page.get("save", name="path", overwrite=False)
    assert page.get("save", name="path", overwrite=False) == {"exists": "path.py"}
    page.get("undo")
    page.get("save", name="path", overwrite=True)
    assert "lower-operators" not in (tmp_path / "path.py").read_text()


def test_what_a_page_shows_may_be_old(page: FakePage) -> None:
    version = page.get("state")["version"]
    page.get("undo")
    for verb, more in (("kernel", {"kernel": 0}), ("apply_site", {"site": 0}), ("sites", {"kernel": 0})):
        assert "look again" in page.error(verb, version=version, **more)
    here = page.get("state")["version"]
    assert "there is no kernel 999" in page.error("kernel", version=here, kernel=999)
    assert "there is no module 9" in page.error("scene", version=here, direction="forward", module=9)
    assert "there is no such site" in page.error("apply_site", version=here, site=0)
    assert "not lowered yet" in page.error("code", version=here, kernel=0)
    assert "no branch is called" in page.error("compare", other="nowhere", seconds=0.1)
    assert "there is no version 99" in page.error("compare", other="version 99", seconds=0.1)
    assert "0 changes to undo" in page.error("undo")


def test_all_pages_hear_of_a_change(page: FakePage) -> None:
    other = FakePage(page.live)
    page.get("undo")
    other.get("state")
    assert [e["state"]["version"] for e in other.events if e["event"] == "state"] == [page.get("state")["version"]]
    other.end()
    page.get("redo")
    other.get("state")
    assert len([e for e in other.events if e["event"] == "state"]) == 1


def test_a_model_that_cannot_be_captured(tmp_path: Path) -> None:
    def fail() -> Any:
        raise SystemExit("the model\nis gone")

    with opened(fail, tmp_path) as page:
        assert page.ready()["failure"] == "SystemExit: the model is gone"
        assert page.error("undo") == "SystemExit: the model is gone"


def test_every_verb_is_answered_in_json(tmp_path: Path) -> None:
    """Whatever the arguments are: an answer that a browser can read."""
    plain = {"version": 0, "kernel": 0, "site": 0, "module": 0, "seconds": 0.01, "overwrite": False, "loops": ["i0"]}
    with opened(lambda: session(1, backward=False), tmp_path) as page:
        page.ready()
        for verb, fields in VERBS.items():
            answer = page.ask(verb, **{name: plain.get(name, "x") for name in fields})
            json.loads(json.dumps(answer, allow_nan=False))
