"""``python -m tests.fuzz FIRST:LAST``: run the programs of these seeds, say what differs from eager PyTorch."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.fuzz import batch
from tests.fuzz.generator import program
from tests.fuzz.program import Program
from tests.fuzz.shrinking import shrunk
from tests.fuzz.worker import COMMAND
from tests.onnx_suite import runner
from tests.opinfo import batch as opinfo
from tests.opinfo import states


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing differs."""
    options = _parser().parse_args(arguments)
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    if options.show:
        print("\n\n".join(program(seed).source() for seed in seeds))
        return 0
    if options.shrink:
        print("\n\n".join(_shrunk(seed, options.interpret, options.recipe).source() for seed in seeds))
        return 0
    start = time.perf_counter()
    found = runner.run(
        [str(s) for s in seeds],
        "interpret" if options.interpret else "build",
        jobs=options.jobs,
        recipe="none" if options.interpret else options.recipe,
        advance=_advance,
        command=COMMAND,
    )
    counts = Counter(states.record(r)["state"] for r in found.values())
    print(f"{len(found)} programs in {time.perf_counter() - start:.0f} s: {dict(counts)}")
    return any(bad(r) for r in found.values())


def _shrunk(seed: int, interpreted: bool, recipe: str) -> Program:
    """In this process; a program that ends it cannot be made smaller."""

    def fails(candidate: Program) -> bool:
        found: list[Any] = []
        make = partial(batch.trial, candidate)
        mode, chosen = ("interpret", "none") if interpreted else ("build", recipe)
        opinfo.run([str(seed)], mode, chosen, lambda m: found.append(m), lambda _, *rest: make(*rest))
        return any(states.record(m["reason"])["state"] == state for m in found if "reason" in m)

    state = "wrong"
    original = program(seed)
    if not fails(original):
        state = "failed"
    return shrunk(original, fails) if fails(original) else original


def bad(result: Any) -> bool:
    """Whether a program differs, or is not compiled."""
    return states.record(result)["state"] not in (*states.RUNS, "skipped", "break")


def line(seed: str, result: Any) -> str:
    """One line that says what is wrong."""
    one = states.record(result)
    return f"{one['state'].upper()} {seed}: {one['reason']}"


def _advance(results: Any) -> None:
    for seed, result in results.items():
        if bad(result):
            print(line(seed, result)[:600], flush=True)
    print(f"... {max(map(int, results))}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("seeds", help="FIRST:LAST, or one seed")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--shrink", action="store_true", help="print the smallest programs that fail in the same way")
    parser.add_argument("--interpret", action="store_true", help="interpret instead of compiling")
    parser.add_argument("-r", "--recipe", default="auto", help="default: auto")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (default: 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
