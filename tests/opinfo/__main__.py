"""``python -m tests.opinfo [PATTERN]``: run matching entries, say what differs from eager PyTorch and why."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.onnx_suite import runner
from tests.opinfo import document, exclusions, states
from tests.opinfo.entries import DTYPES
from tests.opinfo.worker import COMMAND

USUAL = ("float32", "float64", "bfloat16", "int64")
LIMIT = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing differs but what ``excluded.txt`` says."""
    options = _parser().parse_args(arguments)
    part = tuple(int(x) for x in options.share.split("/"))
    names = states.chosen(
        re.compile(options.pattern), options.dtype or USUAL, options.samples or None, (part[0], part[1])
    )
    start = time.perf_counter()
    results = _run(names, options, start)
    if options.json:
        states.write(results, Path(options.json))
    if options.record:
        peer = options.mode.partition("peer:")[2]
        states.merge_peer(results, peer) if peer else states.merge(results, _how(options))
        document.write()
    _report(results, options)
    print("\n".join(states.summary(results)))
    print(f"{len(results)} cases in {time.perf_counter() - start:.0f} s")
    wrong = exclusions.surprises(results)
    if not options.samples and options.share == "0/1" and not options.dtype:  # whole entries
        wrong += exclusions.idle(results)
    for line in wrong:
        print("UNEXPECTED", line[:300])
    return bool(wrong)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that an entry's name must contain")
    parser.add_argument(
        "-m",
        "--mode",
        default="interpret",
        help="interpret (default), build, emulate (the same for cuda, with -r gpu), or peer:NAME, a backend of PyTorch",
    )
    parser.add_argument("-d", "--dtype", action="append", choices=DTYPES, help=f"default: {', '.join(USUAL)}")
    parser.add_argument("-r", "--recipe", default="none")
    parser.add_argument("-n", "--samples", type=int, default=LIMIT, help=f"for each type; 0: all (default: {LIMIT})")
    parser.add_argument("-s", "--share", default="0/1", help="k/n: the k-th of n parts of the cases")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--json", help="write all records to this file")
    parser.add_argument(
        "--record", action="store_true", help=f"keep the states of these entries; write {document.FILE.name}"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="every case that is not native, whole messages")
    return parser


def _run(names: Sequence[str], options: argparse.Namespace, start: float) -> dict[str, Any]:
    done: dict[str, Any] = {}

    def advance(results: Any) -> None:
        done.update(results)
        bad = sum(states.record(r)["state"] in states.WRONG for r in done.values())
        seconds = time.perf_counter() - start
        print(f"{len(done)} of {len(names)}, {bad} wrong, {seconds:.0f} s", file=sys.stderr, flush=True)
        if options.json:
            states.write(done, Path(options.json))

    return dict(
        runner.run(names, options.mode, jobs=options.jobs, recipe=options.recipe, advance=advance, command=COMMAND)
    )


def _how(options: argparse.Namespace) -> str:
    samples = f"{options.samples} samples of each entry" if options.samples else "all samples"
    mode = "interpreted" if options.mode == "interpret" else f"compiled by recipe {options.recipe}"
    return f"{samples} and type, every third also with strides, {', '.join(options.dtype or USUAL)}, {mode}"


def _report(results: dict[str, Any], options: argparse.Namespace) -> None:
    if options.verbose:
        for name, result in results.items():
            one = states.record(result)
            if one["state"] not in ("native", "skipped"):
                print(f"{one['state'].upper()} {name} {one['reason']} {_hosted(one)}")
        return
    for name, entry in states.by_entry(results).items():
        if entry.state != "native" or entry.gradient == "host":
            total = sum(entry.count.values())
            print(f"{entry.state.upper()} {name} ({entry.count[entry.state]} of {total}) {_line(entry)[:300]}")


def _line(entry: states.Entry) -> str:
    if entry.state not in states.RUNS:
        return f"{entry.where}: {entry.reason}"
    return f"forward: {' '.join(sorted(entry.forward))}; gradient: {' '.join(sorted(entry.backward))}"


def _hosted(one: dict[str, Any]) -> str:
    return " ".join(f"[{operator}: {why}]" for operator, why in one.get("why", {}).items())


if __name__ == "__main__":
    sys.exit(main())
