"""Content-addressed store of build results: atomic to write, verified to read, safe among processes, bounded in size.

An entry is a folder of JSON, npz (never pickled), object and library files, whose digests are in its ``entry.json``.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from daceopt.errors import BuildError
from daceopt.store import sealed, storage

logger = logging.getLogger("daceopt.cache")
COMPILER = "compiler"  # in stats: the folder that a compiler keeps for itself
_KEY = 12  # letters of a key that the log shows

LAYOUT = "v1"
DEFAULT_LIMIT = 10 << 30
_EVICTION_INTERVAL = 256 << 20  # measure the folder again after this many bytes were added
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ENOLCK, errno.EOPNOTSUPP}
)

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)

T = TypeVar("T")
Writer = Callable[[Path], None]


@dataclass
class CacheStats:
    """What a cache holds: its folder, number of entries and bytes per kind, and this process's hits and misses."""

    folder: Path
    entries: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    limit: int = DEFAULT_LIMIT

    @property
    def total_bytes(self) -> int:
        """Bytes of all kinds together."""
        return sum(self.bytes.values())


def key(*parts: object) -> str:
    """Return a hexadecimal digest of plain values: str, bytes, int, float, bool, None; tuples, lists, dicts of them.

    Equal values give equal keys in every process; those of different type or nesting differ. TypeError for other types.
    """
    digest = hashlib.sha256()
    _feed(digest, parts)
    return digest.hexdigest()


def is_key(value: object) -> bool:
    """Tell whether ``value`` is what :func:`key` returns."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


class Cache:
    """A store in ``folder``; where that cannot be written, results go to a private temporary folder, with a warning."""

    def __init__(self, folder: Path, limit: int = DEFAULT_LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self._added = _EVICTION_INTERVAL  # so that the first addition measures the folder
        self._spare: Cache | None = None
        self._prepared = False
        self._guard = threading.Lock()

    def get(self, kind: str, key: str) -> Path | None:
        """Return the folder of a valid entry, else None; a damaged entry is removed and logged."""
        path = self._find(kind, key)
        if path is None and self._spare is not None:
            return self._spare.get(kind, key)
        self.hits, self.misses = self.hits + (path is not None), self.misses + (path is None)
        logger.debug("%s %s %s", "found" if path is not None else "no", kind, key[:_KEY])
        return path

    def read(self, kind: str, key: str, reader: Callable[[Path], T]) -> T | None:
        """What ``reader(folder)`` makes of an entry, None without one; what it cannot read is removed and logged,
        however well it is sealed."""
        entry = self.get(kind, key)
        if entry is None:
            return None
        try:
            return reader(entry)
        except _UNREADABLE as error:
            logger.warning("cache entry %s is unusable and will be built again: %s", entry, error)
            self.discard(kind, key)
            return None

    def make(self, kind: str, key: str, writer: Writer, reader: Callable[[Path], T]) -> T:
        """What ``reader`` makes of an entry, which is written first if needed; written anew if it cannot be read.

        Raises BuildError where the entry is gone as soon as it is written.
        """
        for _ in range(2):
            self.build(kind, key, writer)
            value = self.read(kind, key, reader)
            if value is not None:
                return value
        raise BuildError(
            f"the cache in {self.folder} loses what is written to it at once; see `python -m daceopt doctor`"
        )

    def put(self, kind: str, key: str, writer: Writer) -> Path:
        """Let ``writer(folder)`` fill a fresh folder and publish it whole; if another process was first, use its entry.

        Errors of ``writer`` pass through, but one of the disk (full, not writable) makes it run again in the private
        folder; BuildError when that fails too.
        """
        if self._spare is not None:
            return self._spare.put(kind, key, writer)
        try:
            return self._put(kind, key, writer)
        except OSError as error:
            return self._fall_back(error).put(kind, key, writer)

    def build(self, kind: str, key: str, writer: Writer) -> Path:
        """Return the entry, written first if needed; of many threads and processes that ask at once, one writes it."""
        entry = self.get(kind, key)
        if entry is not None:
            return entry
        if self._spare is not None:
            return self._spare.build(kind, key, writer)
        try:
            self._prepare()
            with storage.lock(self.folder / LAYOUT / "locks" / f"{kind}-{key}"):
                entry = self._find(kind, key)
                return entry if entry is not None else self._put(kind, key, writer)
        except OSError as error:
            return self._fall_back(error).build(kind, key, writer)

    def discard(self, kind: str, key: str) -> None:
        """Remove an entry, if it is there."""
        self._remove(self._path(kind, key))
        if self._spare is not None:
            self._spare.discard(kind, key)

    def keys(self, kind: str) -> list[str]:
        """The keys of all entries of a kind, damaged ones included."""
        own = {entry.name for entry in (self.folder / LAYOUT / "entries" / kind).glob("*/*")}
        return sorted(own.union(self._spare.keys(kind) if self._spare is not None else ()))

    def scratch(self) -> Path:
        """Return an existing folder of ours for work files that are not entries."""
        if self._spare is not None:
            return self._spare.scratch()
        try:
            self._prepare()
            return self.folder / LAYOUT / "tmp"
        except OSError as error:
            return self._fall_back(error).scratch()

    def compiler_folder(self) -> Path:
        """Return an existing folder in which a compiler may keep what it compiled for itself, such as its C++ library.

        It counts towards the limit, other entries make room for it, and it goes when the cache is cleared.
        """
        folder = self.scratch().parent / COMPILER
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def keep_failed(self, name: str, text: str) -> Path | None:
        """Keep ``text`` in the ``failed`` folder for the user to look at; None when it cannot be written."""
        try:
            folder = self.scratch().parent / "failed"
            folder.mkdir(mode=0o700, exist_ok=True)
            path = folder / name
            path.write_text(text)
            return path
        except OSError:
            return None

    def stats(self) -> CacheStats:
        """Count the entries and bytes of each kind."""
        result = CacheStats(self.folder, hits=self.hits, misses=self.misses, limit=self.limit)
        for entry in self.entries():
            kind = entry.parent.parent.name
            result.entries[kind] = result.entries.get(kind, 0) + 1
            result.bytes[kind] = result.bytes.get(kind, 0) + sealed.size(entry)
        if compiler := storage.bytes_below(self.folder / LAYOUT / COMPILER):
            result.entries[COMPILER], result.bytes[COMPILER] = 1, compiler
        return result

    def clear(self) -> int:
        """Remove every entry, kept failures and what a compiler kept; return the number of entries removed."""
        entries = list(self.entries())
        for entry in entries:
            self._remove(entry)
        for name in ("failed", COMPILER):
            shutil.rmtree(self.folder / LAYOUT / name, ignore_errors=True)
        return len(entries)

    def _find(self, kind: str, key: str) -> Path | None:
        path = self._path(kind, key)
        if not os.path.lexists(path):
            return None
        reason = sealed.damage(path)
        if reason is None:
            sealed.touch(path)
            return path
        if os.path.lexists(path):  # else evicted while we read it
            logger.warning("cache entry %s is unusable and will be built again: %s", path, reason)
            self._remove(path)
        return None

    def _put(self, kind: str, key: str, writer: Writer) -> Path:
        self._prepare()
        final = self._path(kind, key)
        with storage.work_folder(self.folder / LAYOUT / "tmp") as work:
            fresh = work / "entry"
            fresh.mkdir(mode=0o700)
            writer(fresh)
            size = sealed.seal(fresh)
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for _ in range(2):
                try:
                    fresh.rename(final)
                    break
                except OSError:
                    winner = self._find(kind, key)  # removes a damaged one, so that the second try can succeed
                    if winner is not None:
                        return winner
            else:
                raise OSError(errno.EACCES, "cannot move a finished cache entry to its place", str(final))
        logger.info("wrote %s %s, %d bytes", kind, key[:_KEY], size)
        self._evict_after(size)
        return final

    def _prepare(self) -> None:
        if self._prepared:
            return
        storage.make_private(self.folder / LAYOUT)
        for name in ("tmp", "locks"):
            storage.make_private(self.folder / LAYOUT / name)
        storage.sweep(self.folder / LAYOUT / "tmp")
        self._prepared = True

    def _fall_back(self, error: OSError) -> Cache:
        if not self._concerns(error):
            raise error
        with self._guard:
            if self._spare is None:
                self._spare = Cache(_spare_folder(self.folder, error), self.limit)
            return self._spare

    def _concerns(self, error: OSError) -> bool:
        """Tell whether an error is about this cache's disk or folder, and not about some file that a writer reads."""
        if error.errno in _DISK_ERRORS or not isinstance(error.filename, str):
            return error.errno in _DISK_ERRORS
        path = Path(error.filename)
        return path == self.folder or path in self.folder.parents or self.folder in path.parents

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / LAYOUT / "entries" / kind / key[:2] / key

    def entries(self) -> Iterator[Path]:
        """The folders of all entries, damaged ones included; of our own folders, not what links among them lead to."""
        for entry in (self.folder / LAYOUT / "entries").glob("*/*/*"):
            if storage.is_ours(entry.parent) and storage.is_ours(entry.parent.parent):
                yield entry

    def _remove(self, entry: Path) -> None:
        """Take an entry out of sight in one step, then delete it."""
        try:
            self._prepare()
            with storage.work_folder(self.folder / LAYOUT / "tmp") as work:
                entry.rename(work / "gone")
        except OSError:
            shutil.rmtree(entry, ignore_errors=True)

    def _evict_after(self, added: int) -> None:
        self._added += added
        if self._added < min(_EVICTION_INTERVAL, self.limit // 8):
            return
        self._added = 0
        self._evict()

    def _evict(self) -> None:
        """Remove least recently used entries until nine tenths of the limit remain; loaded libraries stay loaded."""
        entries = sorted((sealed.last_use(entry), sealed.size(entry), entry) for entry in self.entries())
        total = sum(size for _, size, _ in entries) + storage.bytes_below(self.folder / LAYOUT / COMPILER)
        if total <= self.limit:
            return
        for _, size, entry in entries[:-1]:  # the newest one is about to be used
            if total <= self.limit * 9 // 10:
                return
            self._remove(entry)
            total -= size


def default_cache() -> Cache:
    """Return the process's cache as DACEOPT_CACHE_DIR, DACEOPT_DISABLE_CACHE and DACEOPT_CACHE_SIZE say now."""
    disabled = os.environ.get("DACEOPT_DISABLE_CACHE", "").strip().lower() not in ("", "0", "false", "no")
    folder = storage.private_folder() if disabled else default_folder()
    return _open(folder, _limit(os.environ.get("DACEOPT_CACHE_SIZE", "")))


def default_folder() -> Path:
    """Return DACEOPT_CACHE_DIR, else ``$XDG_CACHE_HOME/daceopt``, else ``~/.cache/daceopt``, else a private folder."""
    variable = os.environ.get("DACEOPT_CACHE_DIR", "").strip()
    if variable:
        try:
            return Path(variable).expanduser().absolute()
        except RuntimeError:  # the home of nobody: a folder of that name
            return Path(variable).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", "").strip())
    if shared.is_absolute():  # the XDG rules say to ignore a relative one
        return shared / "daceopt"
    try:
        return Path.home() / ".cache" / "daceopt"
    except RuntimeError:
        return storage.private_folder()


def _spare_folder(unusable: Path, error: OSError) -> Path:
    """Return the private folder that replaces an unusable one, and warn."""
    try:
        private = storage.private_folder()
    except OSError as second:
        raise BuildError(f"no temporary folder can be written: {second}; free disk space or set TMPDIR") from error
    if unusable == private:
        raise BuildError(f"cannot write even to {private}: {error}; free disk space or set TMPDIR") from error
    warnings.warn(
        f"daceopt cannot write its cache folder {unusable} ({error}); this process builds in {private} and keeps "
        "nothing. Free some space, or set DACEOPT_CACHE_DIR to a folder of your own",
        RuntimeWarning,
        stacklevel=6,
    )
    return private


@cache
def _open(folder: Path, limit: int) -> Cache:
    return Cache(folder, limit)


def _limit(text: str) -> int:
    """Parse a size such as ``500M`` or ``2GiB``."""
    plain = text.strip().lower().removesuffix("ib").removesuffix("b")
    if not plain:
        return DEFAULT_LIMIT
    unit = plain[-1] if plain[-1] in _UNITS else ""
    try:
        size = int(float(plain.removesuffix(unit)) * _UNITS[unit])
        if size < 0:
            raise ValueError
    except (ValueError, OverflowError):
        message = f"DACEOPT_CACHE_SIZE={text!r} is not a size such as 500M or 2G; using 10G"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return DEFAULT_LIMIT
    return size


def _feed(digest: hashlib._Hash, value: object) -> None:
    """Hash a value with its type and length before it, so that no two values share an encoding."""
    if isinstance(value, (tuple, list)):
        digest.update(b"l%d:" % len(value))
        for item in value:
            _feed(digest, item)
    elif isinstance(value, dict):
        digest.update(b"d%d:" % len(value))
        for name in sorted(value):
            _feed(digest, name)
            _feed(digest, value[name])
    elif isinstance(value, bytes):
        digest.update(b"b%d:" % len(value) + value)
    elif value is None or isinstance(value, (str, bool, int, float)):
        text = repr(value) if not isinstance(value, str) else value
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{type(value).__name__}{len(data)}:".encode() + data)
    else:
        raise TypeError(f"a cache key holds plain values; got {type(value).__name__}")
