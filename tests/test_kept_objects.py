"""Objects that the compiler made in one run of the tests serve the next: those that were used, whole, and no others."""

from __future__ import annotations

import time
from pathlib import Path

from daceopt.codegen import compiler
from daceopt.codegen.compiler import CompileJob, compile_objects
from daceopt.store.cache import Cache
from tests import kept_objects

JOBS = [CompileJob(f'extern "C" int kept_{k}() {{ return {k}; }}', "frame") for k in range(2)]


def test_a_run_compiles_what_no_run_before_it_has(tmp_path: Path, monkeypatch) -> None:
    kept, runs = tmp_path / "kept", [Cache(tmp_path / str(k)) for k in range(3)]
    made = compile_objects(JOBS, runs[0])
    kept_objects.keep(kept, runs[0].folder, 0.0)
    kept_objects.take(kept, runs[1].folder)
    monkeypatch.setattr(compiler, "_start", lambda *_: 1 / 0)  # nothing is compiled again
    found = compile_objects(JOBS, runs[1])
    assert [f.read_bytes() for f in found] == [m.read_bytes() for m in made]
    assert not set(found) & set(made)
    kept_objects.keep(kept, runs[1].folder, 0.0)
    assert sorted(Cache(kept).keys("object")) == sorted(map(compiler.object_key, JOBS))


def test_what_a_run_did_not_ask_for_is_not_kept(tmp_path: Path) -> None:
    kept, run = tmp_path / "kept", Cache(tmp_path / "run")
    kept_objects.take(kept, run.folder)  # nothing is there yet
    compile_objects(JOBS, run)
    since = time.time() + 1
    kept_objects.keep(kept, run.folder, since)
    assert not Cache(kept).keys("object")


def test_damage_is_seen(tmp_path: Path) -> None:
    kept, run, later = tmp_path / "kept", Cache(tmp_path / "run"), Cache(tmp_path / "later")
    (made,) = compile_objects(JOBS[:1], run)
    kept_objects.keep(kept, run.folder, 0.0)
    (entry,) = Cache(kept).entries()
    (entry / compiler.OBJECT).write_bytes(b"no object")
    kept_objects.take(kept, later.folder)
    (again,) = compile_objects(JOBS[:1], later)
    assert again.read_bytes() == made.read_bytes()


def test_a_folder_shares_objects_but_those_with_other_flags(tmp_path: Path, monkeypatch) -> None:
    run, other = Cache(tmp_path / "run"), Cache(tmp_path / "other")
    kept_objects.share(run.folder, other.folder)
    (plain,) = compile_objects(JOBS[:1], other)
    monkeypatch.setattr(compiler, "_always", compiler.Flags(compile=("-g1",)))
    (flagged,) = compile_objects(JOBS[:1], other)
    assert flagged.read_bytes() != plain.read_bytes() and len(run.keys("object")) == 2
    monkeypatch.setattr(compiler, "_start", lambda *_: 1 / 0)  # nothing is compiled again
    assert compile_objects(JOBS[:1], run)[0].read_bytes() == flagged.read_bytes()
