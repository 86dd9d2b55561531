"""Progress: drawn where somebody looks and only when it takes a while, one line in the log everywhere."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daceopt import progress
from daceopt.codegen.compiler import CompileJob, compile_objects
from daceopt.progress import ProgressRow
from daceopt.store.cache import Cache


class Fake:
    """Remembers what was drawn."""

    drawn: list[list[str]]
    made = 0

    def __init__(self) -> None:
        Fake.made += 1
        Fake.drawn = []
        self.closed = False

    def show(self, rows: Sequence[ProgressRow]) -> None:
        assert not self.closed
        Fake.drawn.append([str(row) for row in rows])

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_board", progress._Board())
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setattr(progress, "DELAY", 0.01)
    monkeypatch.setattr(progress, "_Terminal", Fake)
    Fake.drawn, Fake.made = [], 0


def wait_for_the_screen() -> None:
    end = time.perf_counter() + 10
    while progress._board._screen is None and time.perf_counter() < end:
        time.sleep(0.005)
    assert progress._board._screen is not None


def test_phases_and_counts_are_drawn(watched: None) -> None:
    with progress.phase("compile"):
        wait_for_the_screen()
        with progress.phase("recipe"), progress.steps(2) as steps:
            steps.advance("map-fusion")
        with progress.phase("build"), progress.kernels(3) as compiled:
            compiled.advance()
            compiled.advance()
    assert ["compile", "recipe 1/2 map-fusion"] in Fake.drawn
    assert ["compile", "build 0/3 kernels"] in Fake.drawn and ["compile", "build 2/3 kernels"] in Fake.drawn
    assert progress._board._screen is None and not progress._board._rows


def test_a_count_without_a_phase_is_one_of_its_own(watched: None) -> None:
    with progress.kernels(2) as compiled:
        wait_for_the_screen()
        compiled.advance()
    assert ["build 1/2 kernels"] in Fake.drawn and not progress._board._rows


def test_what_is_over_soon_is_not_drawn(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 60)
    with progress.phase("compile"):
        timer = progress._board._timer
    assert Fake.made == 0 and timer is not None
    timer.join(10)
    assert not timer.is_alive(), "it was cancelled"


def test_an_error_ends_its_phases(watched: None) -> None:
    with pytest.raises(ValueError, match="wrong"), progress.phase("compile"), progress.phase("recipe"):
        wait_for_the_screen()
        raise ValueError("wrong")
    assert not progress._board._rows and progress._board._screen is None


def test_threads_count_together(watched: None) -> None:
    with progress.kernels(400) as compiled, ThreadPoolExecutor(8) as pool:
        for _ in range(400):
            pool.submit(compiled.advance)
        pool.shutdown()
        assert str(progress._board._rows[0]) == "build 400/400 kernels"


def test_phases_of_threads_do_not_mix(watched: None, caplog: pytest.LogCaptureFixture) -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with progress.phase("other"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with caplog.at_level(logging.INFO, "daceopt.pipeline"), progress.phase("mine"):
        thread.start()
        inside.wait(10)
        with progress.steps(1) as steps:
            steps.advance("step")
        assert [str(row) for row in progress._board._rows] == ["mine 1/1 step", "other"]
        leave.set()
        thread.join(10)
    assert [r.message.partition(" ")[0] for r in caplog.records] == ["other", "mine"]


def test_without_a_terminal_there_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_board", progress._Board())
    with caplog.at_level(logging.INFO, "daceopt.pipeline"), progress.phase("compile"):
        assert progress._board._timer is None
        with progress.phase("recipe"):
            pass
        with progress.phase("build"), progress.kernels(1) as compiled:
            compiled.advance()
    (record,) = caplog.records
    assert record.message.startswith("compile 0.0") and record.message.endswith("(recipe 0.00 s, build 0.00 s)")
    assert capfd.readouterr() == ("", "")


def test_compiling_counts_every_distinct_source(tmp_path: Path, watched: None) -> None:
    sources = [CompileJob(f"int value_{k};") for k in (0, 1, 1)]
    with progress.phase("build"):
        wait_for_the_screen()
        compile_objects(sources, Cache(tmp_path / "cache"))
    assert ["build 0/2 kernels"] in Fake.drawn and Fake.drawn[-1] == ["build 2/2 kernels"]


SLOW = """
import time
from daceopt import progress
progress.DELAY = 0.05
with progress.phase("compile"), progress.phase("a[bold]"), progress.kernels(7) as compiled:
    for _ in range(3):
        compiled.advance()
    while progress._board._screen is None:
        time.sleep(0.01)
    time.sleep(0.3)
print("end")
"""


@pytest.mark.parametrize(("kind", "drawn"), [("xterm", True), ("dumb", False)])
def test_a_terminal_shows_it(kind: str, drawn: bool) -> None:
    code = SLOW if drawn else SLOW.replace("while progress", "while False and progress")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": kind, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = os.read(ours, 1 << 20) if drawn else b""
    os.set_blocking(ours, False)
    assert done.returncode == 0 and done.stdout == b"end\n"
    assert (b"a[bold] 3/7 kernels" in shown) == drawn
    if not drawn:
        with pytest.raises((BlockingIOError, OSError)):
            os.read(ours, 1)
    os.close(ours)


def test_a_fork_inside_a_phase_begins_anew() -> None:
    with progress.phase("compile"):
        child = os.fork()
        if child == 0:
            os._exit(0 if not progress._board._rows else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert progress._board._rows


def test_a_watcher_hears_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_board", progress._Board())
    calls: list[list[str]] = []

    def other() -> None:
        with progress.phase("other"), progress.steps(1) as steps:
            steps.advance()

    with progress.watch(lambda rows: calls.append([row.name for row in rows])):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(10)
        assert not calls
        with progress.phase("mine"):
            pass
    assert calls == [["mine"]]
