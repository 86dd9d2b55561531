"""The store: keys, atomic entries, damage, locks, other users, full disks, eviction."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daceopt import system, versions
from daceopt.codegen.assemble import program_key
from daceopt.errors import BuildError
from daceopt.store import sealed, storage
from daceopt.store.cache import Cache, default_cache, default_folder, key

KEY = key("test")


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def write(folder: Path, data: bytes = b"data") -> None:
    (folder / "value.so").write_bytes(data)
    (folder / "more.json").write_text("{}")


def test_key_depends_on_values_types_and_nesting() -> None:
    variants = [
        ("a", "b"),
        ("ab",),
        (("a", "b"),),
        (b"a", b"b"),
        ("a", "b", None),
        (1,),
        ("1",),
        (True,),
        (1.0,),
        ([],),
    ]
    assert len({key(*parts) for parts in variants}) == len(variants)
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    with pytest.raises(TypeError, match="plain values"):
        key(object())


def test_put_then_get(store: Cache) -> None:
    assert store.get("object", KEY) is None
    path = store.put("object", KEY, write)
    assert store.get("object", KEY) == path
    assert (path / "value.so").read_bytes() == b"data"
    assert not list((store.folder / "v1" / "tmp").iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "value.so").write_bytes(b"dat4"),
        lambda entry: (entry / "value.so").unlink(),
        lambda entry: (entry / "entry.json").unlink(),
        lambda entry: (entry / "entry.json").write_text((entry / "entry.json").read_text()[:20]),
        lambda entry: (entry / "entry.json").write_text("[]"),
        lambda entry: (entry / "entry.json").write_text('{"files": {"../../x": {"sha256": "0"}}}'),
        lambda entry: ((entry / "value.so").unlink(), (entry / "value.so").symlink_to("/etc/passwd")),
        lambda entry: entry.chmod(0o777),
    ],
    ids=["changed", "missing", "no list", "cut list", "not a list", "path outside", "link", "world-writable"],
)
def test_damaged_entry_is_dropped_and_built_again(store: Cache, damage, caplog) -> None:
    entry = store.put("object", KEY, write)
    damage(entry)
    with caplog.at_level(logging.WARNING, "daceopt.cache"):
        assert store.get("object", KEY) is None
    assert "will be built again" in caplog.text
    assert not entry.exists()
    assert store.get("object", KEY) is None
    assert (store.build("object", KEY, write) / "value.so").read_bytes() == b"data"


HOSTILE = {
    "nested without end": b"[" * 200_000,
    "a name with a zero": b'{"files": {"a\\u0000": {"sha256": ""}}}',
    "a name of half a character": b'{"files": {"\\ud800": {"sha256": ""}}}',
    "names of folders": b'{"files": {"..": {"sha256": ""}, "": {"sha256": ""}}}',
    "too large": b" " * (2 << 20),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_any_list_of_files_is_data(store: Cache, name: str) -> None:
    (store.put("object", KEY, write) / "entry.json").write_bytes(HOSTILE[name])
    assert store.get("object", KEY) is None
    assert (store.build("object", KEY, write) / "value.so").read_bytes() == b"data"


ENDLESS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
}


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
def test_a_list_of_files_that_never_ends_is_not_read(store: Cache, make: Callable[[Path], None]) -> None:
    path = store.put("object", KEY, write) / "entry.json"
    path.unlink()
    make(path)
    assert store.get("object", KEY) is None


def test_an_entry_that_its_reader_cannot_read_is_written_again(store: Cache) -> None:
    def number(folder: Path) -> int:
        return int(json.loads((folder / "more.json").read_text())["number"])

    store.put("figures", KEY, write)  # sealed, but without the number
    assert store.read("figures", KEY, number) is None and store.get("figures", KEY) is None
    store.put("figures", KEY, write)
    assert store.make("figures", KEY, lambda f: (f / "more.json").write_text('{"number": 3}'), number) == 3  # type: ignore[arg-type, return-value]
    with pytest.raises(BuildError, match="loses what is written"):
        store.make("figures", key("other"), write, number)


def test_links_among_the_entries_are_not_followed(store: Cache, tmp_path: Path) -> None:
    store.put("object", KEY, write)
    (tmp_path / "mine" / "ab").mkdir(parents=True)
    (tmp_path / "mine" / "ab" / "text").write_text("kept")
    entries = store.folder / "v1" / "entries"
    (entries / "kind").symlink_to(tmp_path)
    (entries / "object" / "zz").symlink_to(tmp_path / "mine")
    assert store.stats().entries == {"object": 1} and store.clear() == 1
    assert (tmp_path / "mine" / "ab" / "text").read_text() == "kept"


def test_entry_of_another_user_is_refused(store: Cache, monkeypatch) -> None:
    store.put("object", KEY, write)
    real = os.geteuid()
    monkeypatch.setattr(storage.os, "geteuid", lambda: real + 1)
    assert sealed.damage(store._path("object", KEY)) is not None


def test_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache" / "v1").mkdir(parents=True)
    (tmp_path / "cache" / "v1").chmod(0o777)
    store = Cache(tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match="writable by others"):
        path = store.put("object", KEY, write)
    assert tmp_path not in path.parents


def test_loser_of_a_race_uses_the_winner(store: Cache) -> None:
    def slow(folder: Path) -> None:
        store.put("object", KEY, lambda inner: write(inner, b"winner"))
        write(folder, b"loser")

    assert (store.put("object", KEY, slow) / "value.so").read_bytes() == b"winner"


def test_failed_writer_leaves_nothing(store: Cache) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise BuildError("no")

    with pytest.raises(BuildError, match="no"):
        store.build("object", KEY, fail)
    assert store.get("object", KEY) is None
    assert not list((store.folder / "v1" / "tmp").iterdir())
    assert not list((store.folder / "v1" / "locks").iterdir())


def test_threads_write_one_entry_once(store: Cache) -> None:
    written: list[int] = []

    def slow(folder: Path) -> None:
        written.append(1)
        time.sleep(0.05)
        write(folder)

    threads = [threading.Thread(target=store.build, args=("object", KEY, slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == [1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
def test_folder_that_cannot_be_written_is_replaced_with_one_warning(store: Cache, monkeypatch, code: int) -> None:
    real = Path.mkdir

    def mkdir(self: Path, *args, **kwargs) -> None:
        if store.folder in self.parents:
            raise OSError(code, os.strerror(code), str(self))
        real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.warns(RuntimeWarning, match="cannot write its cache folder") as caught:
        first = store.build("object", KEY, write)
        store.put("object", key("other"), write)
    assert len(caught) == 1
    assert store.get("object", KEY) == first


def test_disk_that_fills_up_in_the_middle_of_an_entry(store: Cache) -> None:
    def fill(folder: Path) -> None:
        write(folder)
        if store.folder in folder.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(RuntimeWarning, match="No space left"):
        path = store.build("object", KEY, fill)
    assert (path / "value.so").read_bytes() == b"data"
    assert not list((store.folder / "v1" / "tmp").iterdir())


def test_error_of_a_file_that_the_writer_reads_passes_through(store: Cache) -> None:
    with pytest.raises(FileNotFoundError, match="/no/model"):
        store.build("object", KEY, lambda folder: write(folder, Path("/no/model").read_bytes()))


def test_nothing_can_be_written_anywhere(store: Cache) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(RuntimeWarning), pytest.raises(BuildError, match="free disk space or set TMPDIR"):
        store.put("object", KEY, fail)


def test_cache_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Cache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="Not a directory"):
        assert (store.build("object", KEY, write) / "value.so").exists()


def test_read_only_cache_still_serves(store: Cache, monkeypatch) -> None:
    path = store.put("object", KEY, write)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(sealed.os, "utime", refuse)
    monkeypatch.setattr(storage.os, "open", refuse)
    assert Cache(store.folder).build("object", KEY, write) == path


def test_eviction_drops_the_least_recently_used(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=14_000)
    names = [key(i) for i in range(6)]
    for age, name in enumerate(names[:5]):
        entry = store.put("object", name, lambda folder: write(folder, b"x" * 2400))
        os.utime(entry / "entry.json", (age, age))
    store.get("object", names[0])
    store.put("object", names[5], lambda folder: write(folder, b"x" * 2400))
    assert store.stats().total_bytes <= 14_000
    assert store.get("object", names[0]) is not None
    assert store.get("object", names[1]) is None
    assert store.get("object", names[5]) is not None


def test_what_a_compiler_keeps_counts_and_is_cleared(tmp_path: Path) -> None:
    store = Cache(tmp_path, limit=14_000)
    library = store.compiler_folder() / "o" / "libc++.a"
    library.parent.mkdir()
    library.write_bytes(b"x" * 9_000)
    names = [key(i) for i in range(3)]
    for name in names:
        store.put("object", name, lambda folder: write(folder, b"x" * 2400))
    assert [store.get("object", name) is not None for name in names] == [False, False, True]
    stats = store.stats()
    assert (stats.entries["compiler"], stats.bytes["compiler"]) == (1, 9_000)
    assert stats.total_bytes <= 14_000 and library.exists()
    assert store.clear() == 1 and store.stats().entries == {}
    assert not library.exists()


def test_stats_and_clear(store: Cache) -> None:
    store.put("object", KEY, write)
    store.put("program", KEY, write)
    stats = store.stats()
    assert stats.entries == {"object": 1, "program": 1}
    assert stats.total_bytes > 12
    assert store.clear() == 2
    assert store.stats().entries == {}


def test_stale_work_folders_are_swept_and_live_ones_kept(store: Cache, tmp_path: Path) -> None:
    parent = tmp_path / "tmp"
    stale, fresh = parent / "1-a", parent / "1-b"
    stale.mkdir(parents=True)
    fresh.mkdir()
    os.utime(stale, (1, 1))
    with storage.work_folder(parent) as live:
        os.utime(live, (1, 1))
        assert storage.sweep(parent) == 1
        assert live.exists()
    assert fresh.exists()
    assert not stale.exists()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import sys,time; from pathlib import Path; from daceopt.store.storage import lock\n"
        "with lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with storage.lock(lock):
        assert lock.exists()
    assert not lock.exists()


def test_environment(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("DACEOPT_CACHE_SIZE", "1.5GiB")
    assert default_cache().folder == tmp_path / "mine"
    assert default_cache().limit == 3 << 29
    assert default_cache() is default_cache()
    monkeypatch.setenv("DACEOPT_CACHE_SIZE", "plenty")
    with pytest.warns(RuntimeWarning, match="'plenty' is not a size"):
        assert default_cache().limit == 10 << 30
    monkeypatch.delenv("DACEOPT_CACHE_SIZE")
    monkeypatch.setenv("DACEOPT_DISABLE_CACHE", "1")
    assert default_cache().folder == storage.private_folder()
    monkeypatch.delenv("DACEOPT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == Path("/xdg/daceopt")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/somebody")
    assert default_folder() == Path("/somebody/.cache/daceopt")


@pytest.mark.parametrize("size", ["inf", "nan", "1e400", "-1", "G", "1 2"])
def test_sizes_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: str) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", "~nobody at all/cache")
    monkeypatch.setenv("DACEOPT_CACHE_SIZE", size)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match="is not a size"):
        found = default_cache()
    assert found.limit == 10 << 30 and found.folder == tmp_path / "~nobody at all" / "cache"


def test_entry_lists_every_file(store: Cache) -> None:
    entry = store.put("object", KEY, write)
    assert set(json.loads((entry / "entry.json").read_text())["files"]) == {"value.so", "more.json"}
    assert entry.stat().st_mode & 0o777 == 0o700
    assert (entry / "more.json").stat().st_mode & 0o777 == 0o600


def test_versions_of_what_makes_code_are_in_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint() -> str:
        versions.text.cache_clear()
        system.fingerprint.cache_clear()
        return system.fingerprint()

    try:
        before, real = fingerprint(), versions.version
        assert program_key("same") == program_key("same")
        for package in ("torch", "onnx", "sympy", "dace", "numpy", "onednn-cpu-gomp", "mkl"):
            with monkeypatch.context() as patch:
                patch.setattr(versions, "version", lambda name, p=package: "0.0" if name == p else real(name))
                assert fingerprint() != before, package
        assert fingerprint() == before
        assert "mkl absent" in versions.text() or "mkl 2" in versions.text()
    finally:
        fingerprint()


def test_versions_are_found_without_an_import() -> None:
    code = "import sys; from daceopt import versions; print(versions.text()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, modules = done.stdout.rsplit("\n", 2)[:2]
    assert "sympy 1." in text and "onnx 1." in text
    assert not {"onnx", "onnxscript", "sympy", "onnxruntime", "dace"} & set(modules.split())
