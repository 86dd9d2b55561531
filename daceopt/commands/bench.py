"""``python -m daceopt bench``: runs the benchmarks of a checkout, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from daceopt.errors import DaceoptError


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        help="suites (kernels, networks, training, compile, memory, calls) or cases, case:row,row for some rows "
        "(default: all suites)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions, no contender that compiles for minutes"
    )
    parser.add_argument("--peers", metavar="A,B", help="beside whom (default: what the case says)")
    parser.add_argument("--record", action="store_true", help="put the tables into docs/results")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="write the results as JSON, and a plot, here (default: nowhere)",
    )


def run(options: Namespace) -> int:
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    if not folder.is_dir():
        raise DaceoptError(f"expected the benchmarks in {folder}: run this command in a checkout of the source")
    # -B: nothing is written into the checkout, compiled modules included.
    command = [sys.executable, "-B", "-m", "benchmarks", *options.names]
    command += [f"--{name}" for name in ("quick", "record") if getattr(options, name)]
    if options.peers is not None:
        command += ["--peers", options.peers]
    if options.output is not None:
        command += ["--output", str(options.output.absolute())]
    return subprocess.call(command, cwd=folder.parent)
