"""Sources compiled ahead of the programs that need them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from daceopt.codegen import ahead, compiler
from daceopt.codegen.compiler import CompileJob, compile_objects
from daceopt.store.cache import Cache


def _wait() -> None:
    """Until nothing is compiled ahead."""
    for thread in threading.enumerate():
        if thread.name.startswith("daceopt-ahead"):
            thread.join()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    cache = Cache(tmp_path / "cache")
    monkeypatch.setattr(ahead, "default_cache", lambda: cache)
    return cache


def test_found_by_who_needs_it(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    job = CompileJob("int ahead_of_time() { return 1; }")
    ahead.start([job])
    _wait()
    monkeypatch.setattr(compiler, "_write_object", lambda *_: pytest.fail("compiled twice"))
    assert compile_objects([job], store)[0].exists()
    ahead.start([job])  # nothing is left to do
    _wait()


def test_an_error_is_for_who_needs_it(store: Cache) -> None:
    job = CompileJob("this is no C++", label="wrong")
    ahead.start([job])
    _wait()
    with pytest.raises(compiler.BuildError, match="rejected kernel wrong"):
        compile_objects([job], store)
