"""Entries of the cache: folders whose ``entry.json`` lists every file's digest, so that damage is seen before use."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from daceopt.store import storage

ENTRY = "entry.json"
_MOST_BYTES = 1 << 20  # of it

logger = logging.getLogger("daceopt.cache")


def seal(entry: Path) -> int:
    """Write ``entry.json`` with every file's digest; return the entry's size in bytes."""
    files, total = {}, 0
    for path in sorted(entry.iterdir()):
        path.chmod(0o700 if path.suffix == ".so" else 0o600)
        files[path.name] = {"sha256": storage.file_digest(path)}
        total += path.stat().st_size
    (entry / ENTRY).write_text(json.dumps({"files": files}, indent=1))
    (entry / ENTRY).chmod(0o600)
    return total


def damage(entry: Path) -> str | None:
    """Say what is wrong with an entry; None = nothing."""
    if not storage.is_ours(entry) or not entry.is_dir():
        return "it is not a folder that only we may write to"
    try:
        expected = _digests(entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"its entry.json cannot be read ({type(error).__name__})"
    return next((reason for reason in (_file_damage(entry, *item) for item in expected.items()) if reason), None)


def names(entry: Path) -> set[str]:
    """The files that an entry was sealed with; what cannot be read raises as :func:`damage` says it."""
    return set(_digests(entry))


def _digests(entry: Path) -> dict[str, str]:
    files = json.loads(storage.small_file(entry / ENTRY, _MOST_BYTES))["files"]
    return {str(name): str(info["sha256"]) for name, info in files.items()}


def _file_damage(entry: Path, name: str, digest: str) -> str | None:
    path = entry / name
    if path.parent != entry or not storage.is_ours(path) or not path.is_file():
        return f"{name!r} is missing or not a plain file of ours"
    try:
        return None if storage.file_digest(path) == digest else f"{name!r} has changed since it was written"
    except OSError as error:
        return f"{name!r} cannot be read ({error.strerror})"


def size(entry: Path) -> int:
    """Return the bytes of an entry's files; 0 when it is gone."""
    try:
        return sum(path.stat().st_size for path in entry.iterdir())
    except OSError:
        return 0


def last_use(entry: Path) -> float:
    """Return when an entry was last read or written; 0 when that cannot be told."""
    try:
        return (entry / ENTRY).stat().st_mtime
    except OSError:
        return 0.0


def touch(entry: Path) -> None:
    """Mark an entry as used now."""
    try:
        os.utime(entry / ENTRY)
    except OSError:  # a read-only cache folder still serves
        logger.debug("cannot mark %s as used", entry)
