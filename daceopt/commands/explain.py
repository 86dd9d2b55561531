"""``python -m daceopt explain``: what a model moves and computes, and what each step of the recipe did."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from daceopt.capture.onnx.file import load
from daceopt.commands import model
from daceopt.errors import DaceoptError
from daceopt.explore import explain
from daceopt.explore.report.report import Report
from daceopt.explore.report.side_by_side import side_by_side
from daceopt.runtime.tensors import from_file


def arguments(parser: ArgumentParser) -> None:
    model.arguments(parser)
    model.inputs_argument(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as HTML too")
    parser.add_argument(
        "--kernel", metavar="NAME", help="print schedule and C++ of the kernels called NAME or so, side by side"
    )


def run(options: Namespace) -> None:
    report = _report(options)
    if options.kernel is not None:
        _print_kernels(report, options.kernel)
        return
    print(report)
    if options.html is not None:
        options.html.write_text(report.html(), encoding="utf-8")
        print(f"written: {options.html}")


def _report(options: Namespace) -> Report:
    subject, chosen = model.model_of(options), {"recipe": model.recipe(options), "verify": options.verify}
    if not isinstance(subject, Path):
        return explain(subject.module, *subject.args, **subject.kwargs, **chosen)
    loaded = load(subject)  # a damaged file is an error of this command, not a property to report
    stored = {t.name for t in loaded.graph.initializer}
    names = [v.name for v in loaded.graph.input if v.name not in stored]
    inputs = from_file(options.inputs, names) if options.inputs is not None else []
    return explain(subject, *inputs, **chosen)


def _print_kernels(report: Report, text: str) -> None:
    """Schedule and C++ of some kernels beside each other; where the model is not compiled, the reason."""
    if not report.kernels:
        raise DaceoptError(f"there are no kernels: {report.reason or '; '.join(report.notes)}")
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for kernel in report.matching(text):
        print(side_by_side(kernel, width))
