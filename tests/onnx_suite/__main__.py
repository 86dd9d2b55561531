"""``python -m tests.onnx_suite [PATTERN]``: run matching cases, say what fails and why, count by operator."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.onnx_suite import runner
from tests.onnx_suite.cases import KINDS, cases, is_numeric, operator_of
from tests.onnx_suite.exclusions import surprises

GOAL = 0.95
"""The part of the node tests over numbers that has to pass natively."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all that ran passed, or failed as ``excluded.txt`` says, and did no worse than ONNX Runtime."""
    options = _parser().parse_args(arguments)
    pattern = re.compile(options.pattern)
    names = [c.name for c in cases().values() if pattern.search(c.name) and c.kind in (options.kind or KINDS)]
    wrong = []
    if options.mode in ("native", "all"):
        results = _timed(names, "native", options)
        wrong += surprises(results)
        share = _numeric_share(results)
        wrong += [f"{share:.2%} of the node tests over numbers pass, expected {GOAL:.0%}"] if share < GOAL else []
        names = [name for name, reason in results.items() if reason]
    if options.mode in ("fallback", "all"):
        results = _timed(names, "fallback", options)
        failed = [name for name, reason in results.items() if reason]
        theirs = _run(failed, "onnxruntime", options)
        wrong += [f"{name} fails, but passes in ONNX Runtime" for name, reason in theirs.items() if not reason]
    for line in wrong:
        print("UNEXPECTED", " ".join(line.split())[: None if options.verbose else 300])
    return bool(wrong)


def _timed(names: Sequence[str], mode: str, options: argparse.Namespace) -> runner.Results:
    start = time.perf_counter()
    results = _run(names, mode, options)
    _report(results, options)
    passed = sum(not reason for reason in results.values())
    seconds, share = time.perf_counter() - start, _numeric_share(results)
    print(f"{mode}: {passed} of {len(results)} pass in {seconds:.0f} s; node tests over numbers: {share:.2%}")
    return results


def _numeric_share(results: runner.Results) -> float:
    numeric = [
        not reason for n, reason in results.items() if cases()[n].kind == "node" and is_numeric(cases()[n].model)
    ]
    return sum(numeric) / len(numeric) if numeric else 1.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_suite", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that a name must contain")
    parser.add_argument(
        "-k", "--kind", action="append", choices=KINDS, help="only tests of this kind (may be repeated)"
    )
    parser.add_argument("-m", "--mode", default="native", choices=("native", "fallback", "all"))
    parser.add_argument("-r", "--recipe", default="none")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="whole messages")
    return parser


def _run(names: Sequence[str], mode: str, options: argparse.Namespace) -> runner.Results:
    columns = (TextColumn(mode), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"))
    failed = 0
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(mode, total=len(names), failed=0)

        def advance(results: runner.Results) -> None:
            nonlocal failed
            failed += sum(map(bool, results.values()))
            bar.update(task, advance=len(results), failed=failed)
            if not bar.console.is_terminal:  # nobody sees a bar in a log
                print(f"{mode}: {bar.tasks[task].completed:.0f} of {len(names)}, {failed} failed", file=sys.stderr)

        return runner.run(names, mode, jobs=options.jobs, recipe=options.recipe, advance=advance)


def _report(results: runner.Results, options: argparse.Namespace) -> None:
    for name, reason in sorted(results.items()):
        if reason and options.verbose:
            print(f"FAIL {name} {reason}")
    totals = Counter(operator_of(cases()[name]) for name in results)
    failures = Counter(operator_of(cases()[name]) for name, reason in results.items() if reason)
    table = Table("operator", "passed", "of")
    for operator, count in sorted(failures.items()):
        table.add_row(operator, str(totals[operator] - count), str(totals[operator]))
    if failures:
        Console(file=sys.stdout).print(table)


if __name__ == "__main__":
    sys.exit(main())
