"""``python -m benchmarks [names]``: run benchmarks, print a table; on request JSON, a plot, ``docs/results``."""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import cases as _cases  # noqa: F401  (registers the cases)
from benchmarks import report
from benchmarks.contenders import ENTRIES
from benchmarks.harness import CASES, OURS, Budget, machine, run, save
from benchmarks.suites import SUITES
from benchmarks.world import command as world


def main(argv: list[str] | None = None) -> int:
    """Run what the arguments name; 0 when every goal was met, 1 otherwise."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["world"]:
        return world.main(words[1:])
    parser = _parser()
    options = parser.parse_args(words)
    names = [case for name in options.names or SUITES for case in SUITES.get(name, (name,))]
    _refuse(parser, "benchmark", (name.partition(":")[0] for name in names), [*SUITES, *CASES])
    peers = None if options.peers is None else split_names(options.peers, [*ENTRIES, "JAX"])
    _refuse(parser, "contender", peers or (), [*ENTRIES, "JAX"])
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)  # an error now, not after the measurements
    logging.getLogger("torch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third parties' between the lines of the table
        results = run(names, replace(Budget.quick() if options.quick else Budget(), peers=peers))
    if options.output is not None:
        print(f"written: {save(results, options.output)}")
        print(report.plot(results, options.output / "ratios.svg"))
    if options.record:
        report.record(results, machine())
    return int(any(result.met is False for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks", description="daceopt beside its peers.")
    choices = f"suites: {', '.join(SUITES)}; cases: {', '.join(CASES)}"
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{choices}; case:row,row for some rows (default: all suites)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, and no contender that compiles for minutes"
    )
    peers = ", ".join(who for who in ENTRIES if who != OURS)
    parser.add_argument("--peers", metavar="A,B", help=f"beside whom: {peers} (default: what the case says)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="a folder for results as JSON and a plot (default: none)"
    )
    parser.add_argument("--record", action="store_true", help="put the tables into docs/results")
    return parser


def split_names(text: str, choices: Sequence[str]) -> tuple[str, ...]:
    """The names in a list with commas, where ``choices`` may have commas themselves."""
    names = []
    while text := text.lstrip(" ,"):
        whole = [name for name in choices if text == name or text.startswith(f"{name},")]
        names.append(max(whole, key=len, default=text.partition(",")[0]))
        text = text[len(names[-1]) :]
    return tuple(names)


def _refuse(parser: argparse.ArgumentParser, kind: str, names: Iterable[str], choices: Sequence[str]) -> None:
    if unknown := sorted(set(names) - set(choices)):
        parser.error(f"no {kind} is called {', '.join(unknown)}; there are: {', '.join(choices)}")


if __name__ == "__main__":
    raise SystemExit(main())
