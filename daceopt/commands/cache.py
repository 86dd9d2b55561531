"""``python -m daceopt cache``: shows or empties the compilation cache."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from daceopt.store.cache import default_cache


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("info", "clear"))


def run(options: Namespace) -> None:
    cache = default_cache()
    if options.action == "clear":
        print(f"{cache.clear()} entries removed from {cache.folder}")
        return
    stats = cache.stats()
    print(f"folder  {stats.folder}\ntotal   {stats.total_bytes / 1e6:.1f} MB of at most {stats.limit / 1e6:.0f} MB")
    for kind in sorted(stats.entries):
        print(f"{kind:<8}{stats.entries[kind]} entries, {stats.bytes[kind] / 1e6:.1f} MB")
