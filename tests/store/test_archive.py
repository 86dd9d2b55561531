"""The cache as a file: what comes back, and files that are foreign, damaged or hostile."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daceopt import system
from daceopt.commands.main import main
from daceopt.errors import DaceoptError
from daceopt.store import archive
from daceopt.store.cache import Cache, key

FIRST, SECOND = key("first"), key("second")


@pytest.fixture
def full(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "full")
    for name, kind in ((FIRST, "object"), (SECOND, "program")):
        cache.put(kind, name, lambda folder, name=name: _fill(folder, name.encode()))
    return cache


@pytest.fixture
def empty(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "empty")


def _fill(folder: Path, data: bytes) -> None:
    (folder / "code.so").write_bytes(data)
    (folder / "more.json").write_text("{}")


def test_entries_come_back(full: Cache, empty: Cache, tmp_path: Path) -> None:
    file = tmp_path / "cache.zip"
    assert archive.write(full, file) == 2
    assert archive.read(empty, file) == (2, 0, 0)
    for kind, name in (("object", FIRST), ("program", SECOND)):
        entry = empty.get(kind, name)
        assert entry is not None and (entry / "code.so").read_bytes() == name.encode()
        assert {p.name for p in entry.iterdir()} == {"code.so", "more.json", "entry.json"}
    assert archive.read(empty, file) == (0, 2, 0)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_damaged_entry_is_not_written(full: Cache, tmp_path: Path) -> None:
    entry = full.get("object", FIRST)
    assert entry is not None
    (entry / "code.so").write_bytes(b"other")
    assert archive.write(full, tmp_path / "cache.zip") == 1


def _changed(file: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(file) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    change(contents)
    with zipfile.ZipFile(file, "w") as new:
        for name, data in contents.items():
            new.writestr(name, data)


def test_changed_missing_and_further_files_are_left_out(full: Cache, empty: Cache, tmp_path: Path) -> None:
    def change(contents: dict[str, bytes]) -> None:
        contents[f"object/{FIRST}/code.so"] = b"other code"
        contents[f"program/{SECOND}/further.so"] = b"code that nobody sealed"
        contents[f"program/{key('third')}/code.so"] = b"no entry.json"

    file = tmp_path / "cache.zip"
    archive.write(full, file)
    _changed(file, change)
    assert archive.read(empty, file) == (0, 0, 3)
    assert list(empty.entries()) == []


@pytest.mark.parametrize(
    "name",
    ["../outside.so", "/outside.so", f"object/{FIRST}/../../x", f"object/{FIRST}/.hidden", "object/short/x", "x"],
)
def test_names_that_are_of_no_entry(full: Cache, empty: Cache, tmp_path: Path, name: str) -> None:
    file = tmp_path / "cache.zip"
    archive.write(full, file)
    _changed(file, lambda contents: contents.update({name: b"x"}))
    with pytest.raises(DaceoptError, match="is of no entry; nothing was added"):
        archive.read(empty, file)
    assert not (tmp_path / "outside.so").exists() and list(empty.entries()) == []


def _foreign(contents: dict[str, bytes]) -> None:
    about = json.loads(contents["about.json"])
    contents["about.json"] = json.dumps({**about, "fingerprint": "another", "machine": "VAX"}).encode()


def _unnamed(contents: dict[str, bytes]) -> None:
    contents["about.json"] = b"[" * 30_000


@pytest.mark.parametrize(
    "change, message",
    [(_foreign, "of another machine or installation .'VAX'"), (_unnamed, "does not say of which machine")],
)
def test_files_of_other_machines(
    full: Cache, empty: Cache, tmp_path: Path, change: Callable[[dict[str, bytes]], None], message: str
) -> None:
    file = tmp_path / "cache.zip"
    archive.write(full, file)
    _changed(file, change)
    with pytest.raises(DaceoptError, match=message):
        archive.read(empty, file)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_twice(full: Cache, empty: Cache, tmp_path: Path) -> None:
    file = tmp_path / "cache.zip"
    archive.write(full, file)
    with zipfile.ZipFile(file, "a") as more:
        more.writestr(f"object/{FIRST}/code.so", b"again")
    with pytest.raises(DaceoptError, match="has a file twice"):
        archive.read(empty, file)


def test_more_than_the_cache_keeps(full: Cache, tmp_path: Path) -> None:
    archive.write(full, tmp_path / "cache.zip")
    with pytest.raises(DaceoptError, match="more than the 16 bytes"):
        archive.read(Cache(tmp_path / "small", limit=16), tmp_path / "cache.zip")


@pytest.mark.parametrize("length", [0, 10, 400])
def test_files_that_end_early(full: Cache, empty: Cache, tmp_path: Path, length: int) -> None:
    file = tmp_path / "cache.zip"
    archive.write(full, file)
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(DaceoptError, match="is no whole file of `daceopt cache export`"):
        archive.read(empty, file)


def test_commands(
    full: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cache.zip"
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(full.folder))
    assert main(["cache", "export", str(file)]) == 0
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "empty"))
    assert main(["cache", "import", str(file)]) == 0
    out = capsys.readouterr().out
    assert f"2 entries written to {file}" in out and "2 entries added to" in out
    for wrong in (["cache", "import"], ["cache", "info", str(file)], ["cache", "import", str(tmp_path / "absent.zip")]):
        assert main(wrong) == 2
    error = capsys.readouterr().err
    assert "`cache import` needs a FILE" in error and "`cache info` takes no FILE" in error and "No such file" in error


def test_the_fingerprint_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = system.fingerprint.__wrapped__()
    monkeypatch.setattr(system, "cpu_features", lambda: frozenset({"avx2"}))
    assert system.fingerprint.__wrapped__() != before
