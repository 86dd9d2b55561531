"""The ground under the cache: private folders, file locks, work folders that outlive no process, file digests."""

from __future__ import annotations

import atexit
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_YOUNG_SECONDS = 60.0  # a work folder younger than this may not be locked by its maker yet: leave it to the next sweep


def make_private(folder: Path) -> None:
    """Create ``folder`` (mode 0700) and its parents; PermissionError if another user owns it or may write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(folder):
        raise PermissionError(
            errno.EACCES, "it belongs to another user, is writable by others, or is a link", str(folder)
        )


def is_ours(path: Path) -> bool:
    """Tell whether ``path`` is a plain file or folder that we own and nobody else may write to."""
    try:
        info = os.lstat(path)
    except (OSError, ValueError):  # the name has a character that no file's has
        return False
    if not (stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode)):
        return False
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 where it is missing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                total += Path(path, name).lstat().st_size
    return total


def small_file(path: Path, most: int) -> bytes:
    """The bytes of a plain file of ours, at most ``most``. Raises ValueError for a larger one and for what is none,
    which might never end."""
    if not is_ours(path) or not path.is_file():
        raise ValueError(f"{path} is no plain file of ours")
    with path.open("rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return data


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the exclusive lock named by ``path`` among all threads and processes; the system releases a killed holder's.

    The lock file is removed on release, so a waiter that wakes up on a removed file starts again on the new one.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _same_file(descriptor, path):
                continue
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may share the descriptor: closing is not enough
            return
        finally:
            os.close(descriptor)


@contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Make a fresh private folder below ``parent``, locked while in use, and remove what is left of it afterwards."""
    folder = parent / f"{os.getpid()}-{uuid.uuid4().hex}"
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def sweep(parent: Path) -> int:
    """Remove the work folders below ``parent`` whose makers are gone; return how many."""
    return sum(_remove_if_stale(folder) for folder in _listing(parent))


@cache
def private_folder() -> Path:
    """Return this process's own temporary folder, removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="daceopt-"))
    owner = os.getpid()
    # A forked child that exits must not take its parent's folder along.
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def _remove_if_stale(folder: Path) -> bool:
    try:
        if time.time() - folder.stat().st_mtime < _YOUNG_SECONDS:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
