"""Which compilers have filled a cache: a machine that has none of its own finds what they built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daceopt import system
from daceopt.store.cache import Cache, key

_KIND, _FILE = "compiler", "compiler.txt"


def record(cache: Cache) -> None:
    """Keep beside what it built which compiler this machine has."""
    text = system.compiler_text()
    cache.build(_KIND, key(_KIND, text), lambda folder: _write(folder, text))


def choose(cache: Cache, kind: str, identity: Callable[[str], str]) -> str:
    """The key of an entry, where ``identity`` makes one of a fingerprint of the machine. Without a compiler it is that
    of a compiler which has filled the cache, if there is such an entry."""
    own = identity(system.fingerprint())
    if system.compiler() is not None:
        return own
    others = (identity(system.fingerprint_with(text)) for text in _compilers(cache))
    return next((other for other in others if cache.get(kind, other) is not None), own)


def _compilers(cache: Cache) -> list[str]:
    texts = (cache.read(_KIND, name, lambda folder: (folder / _FILE).read_text()) for name in cache.keys(_KIND))
    return [text for text in texts if text is not None]


def _write(folder: Path, text: str) -> None:
    (folder / _FILE).write_text(text)
