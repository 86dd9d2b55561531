"""``python -m daceopt cache``: shows or empties the compilation cache, writes it to a file or fills it from one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from daceopt.errors import DaceoptError
from daceopt.store import archive
from daceopt.store.cache import Cache, default_cache


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "clear", *_FILES))
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="of export and import: for machines like this"
    )


def run(options: Namespace) -> None:
    if (options.action in _FILES) != (options.file is not None):
        needs = "takes no" if options.file else "needs a"
        raise DaceoptError(f"`cache {options.action}` {needs} FILE")
    cache = default_cache()
    if options.action in _FILES:
        _FILES[options.action](cache, options.file)
        return
    if options.action == "clear":
        print(f"{cache.clear()} entries removed from {cache.folder}")
        return
    stats = cache.stats()
    print(f"folder  {stats.folder}\ntotal   {stats.total_bytes / 1e6:.1f} MB of at most {stats.limit / 1e6:.0f} MB")
    for kind in sorted(stats.entries):
        print(f"{kind:<8}{stats.entries[kind]} entries, {stats.bytes[kind] / 1e6:.1f} MB")


def _export(cache: Cache, path: Path) -> None:
    print(f"{archive.write(cache, path)} entries written to {path}")


def _import(cache: Cache, path: Path) -> None:
    result = archive.read(cache, path)
    present = f", {result.present} were there" if result.present else ""
    damaged = f", {result.damaged} are damaged and were left out" if result.damaged else ""
    print(f"{result.added} entries added to {cache.folder}{present}{damaged}")


_FILES: dict[str, Callable[[Cache, Path], None]] = {"export": _export, "import": _import}
