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
from tests.onnx_suite.exclusions import excluded


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all that ran passed, or failed as ``excluded.txt`` says."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    pattern = re.compile(options.pattern)
    names = [c.name for c in cases().values() if pattern.search(c.name) and c.kind in (options.kind or KINDS)]
    start = time.perf_counter()
    results = _run(names, options.mode, options, console)
    _report(results, options, console)
    wrong = _surprises(results) if options.mode == "native" else _worse_than_runtime(results, options, console)
    for line in wrong:
        print(line)
    passed = sum(not reason for reason in results.values())
    print(f"{passed} of {len(results)} pass ({options.mode}) in {time.perf_counter() - start:.0f} s", end="")
    numeric = [n for n in results if cases()[n].kind == "node" and is_numeric(cases()[n].model)]
    if numeric:
        good = sum(not results[n] for n in numeric)
        print(f"; of the {len(numeric)} node tests over numbers {good}, {good / len(numeric):.2%}", end="")
    print(f"; {len(wrong)} unexpected")
    return bool(wrong)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.onnx_suite", description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="regular expression that a name must contain")
    parser.add_argument(
        "-k", "--kind", action="append", choices=KINDS, help="only tests of this kind (may be repeated)"
    )
    parser.add_argument("-m", "--mode", default="native", choices=("native", "fallback"))
    parser.add_argument("-r", "--recipe", default="none")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("-v", "--verbose", action="store_true", help="whole messages")
    return parser


def _run(names: Sequence[str], mode: str, options: argparse.Namespace, console: Console) -> runner.Results:
    columns = (TextColumn(mode), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"))
    failed = 0
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(mode, total=len(names), failed=0)

        def advance(results: runner.Results) -> None:
            nonlocal failed
            failed += sum(map(bool, results.values()))
            bar.update(task, advance=len(results), failed=failed)

        return runner.run(names, mode, jobs=options.jobs, recipe=options.recipe, advance=advance)


def _report(results: runner.Results, options: argparse.Namespace, console: Console) -> None:
    totals = Counter(operator_of(cases()[name]) for name in results)
    failures = Counter(operator_of(cases()[name]) for name, reason in results.items() if reason)
    for name, reason in sorted(results.items()):
        if reason:
            print(f"FAIL {name} {reason if options.verbose else ' '.join(reason.split())[:230]}")
    table = Table("operator", "passed", "of")
    for operator, count in sorted(failures.items()):
        table.add_row(operator, str(totals[operator] - count), str(totals[operator]))
    if failures:
        Console(file=sys.stdout).print(table)


def _surprises(results: runner.Results) -> list[str]:
    known = excluded()
    found = [f"UNEXPECTED pass of {n}, which is excluded: {known[n]}" for n in results if n in known and not results[n]]
    return found + [f"UNEXPECTED failure of {n}" for n, reason in results.items() if reason and n not in known]


def _worse_than_runtime(results: runner.Results, options: argparse.Namespace, console: Console) -> list[str]:
    failed = [name for name, reason in results.items() if reason]
    theirs = _run(failed, "onnxruntime", options, console) if failed else {}
    return [f"WORSE than ONNX Runtime, which passes {name}" for name, reason in theirs.items() if not reason]


if __name__ == "__main__":
    sys.exit(main())
