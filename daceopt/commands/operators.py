"""``python -m daceopt operators``: the tables of the operators of ONNX and of ATen."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from daceopt.capture.torch import rule_table
from daceopt.ops.core.operator_table import compact, coverage, markdown, summary


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--aten", action="store_true", help="those of ATen, for modules, rather than ONNX's")
    parser.add_argument("--markdown", action="store_true", help="as docs/operators.md and docs/aten.md have it")


def run(options: Namespace) -> None:
    (_of_aten if options.aten else _of_onnx)(options.markdown)


def _of_aten(as_markdown: bool) -> None:
    rules = rule_table.rows()
    print(rule_table.markdown(rules) if as_markdown else rule_table.text(rules), end="")


def _of_onnx(as_markdown: bool) -> None:
    rows = coverage()
    if as_markdown:
        print(markdown(rows), end="")
        return
    print(f"{'operator':<32}{'how':<10}{'gradient':<10}{'versions':<32}types")
    for row in rows:
        name = f"{row.domain}.{row.op_type}" if row.domain else row.op_type
        refused = f" (not {compact(row.refused)})" if row.types and row.refused else ""
        versions = " ".join(map(str, row.versions))
        print(f"{name:<32}{row.how:<10}{row.gradient or '-':<10}{versions:<32}{compact(row.types)}{refused}")
    print(f"\n{summary(rows)}")
