"""What the compiler made in earlier runs of the tests, kept by its content: a run compiles what has changed since."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from daceopt.store import sealed, storage
from daceopt.store.cache import LAYOUT, Cache

_KIND = "object"
_LIMIT = 1 << 29  # several times what a run asks for


def take(kept: Path, cache: Path) -> None:
    """Copy what ``kept`` has into the new folder of a cache."""
    if _objects(kept).is_dir():
        shutil.copytree(_objects(kept), _objects(cache))


def share(cache: Path, other: Path) -> None:
    """Let a new folder of a cache have the objects of ``cache``. Their names tell the flags, which may be others."""
    _objects(cache).mkdir(mode=0o700, parents=True, exist_ok=True)
    storage.make_private(_objects(other).parent)
    _objects(other).symlink_to(_objects(cache))


def keep(kept: Path, cache: Path, since: float) -> None:
    """Add to ``kept`` what a cache was asked for ``since`` that time; what nobody asks for goes when there is much."""
    store = Cache(kept, _LIMIT)
    for entry in _objects(cache).glob("*/*"):
        if sealed.last_use(entry) >= since:
            store.build(_KIND, entry.name, partial(shutil.copytree, entry, ignore=_seal, dirs_exist_ok=True))


def _seal(*_: object) -> list[str]:
    return [sealed.ENTRY]


def _objects(folder: Path) -> Path:
    return folder / LAYOUT / "entries" / _KIND
