"""``docs/aten.md``: what the front end does with each entry of PyTorch's database, made from ``states.json``, and the
operators that have a rule. ``python -m tests.opinfo.document`` writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daceopt.capture.torch import rule_table
from tests.opinfo.entries import MODULES, entries
from tests.opinfo.states import RUNS, STATES, kept_states

FILE = Path(__file__).parents[2] / "docs" / "aten.md"
_WORDS = {"host": "host call", "break": "graph break", "timeout": "too slow"}
_HEAD = """# PyTorch's operators and modules

What the PyTorch front end does with the entries of `torch.testing._internal`'s databases of operators (`op_db`) and
modules (`module_db`), from `python -m tests.opinfo --record`. An entry has many samples (arguments, shapes, types,
strides); each is called through TorchDynamo, and its results, gradients and second gradients are compared with eager
PyTorch's, bounded by what rounding explains beside float64.
The state of an entry is the worst of its samples:

- *native*: compiled; *host call*: compiled, and ATen itself runs the operators named;
- *graph break*: TorchDynamo cannot trace it; *refused*: the graph stays in eager PyTorch, with the reason;
- *wrong*, *failed*, *crash*, *too slow*: it differs from eager PyTorch, or does not compile: still to be mended.

Made by the tests; do not edit.
"""


def render(kept: Mapping[str, Any]) -> str:
    """The whole document."""
    rows = kept["entries"]
    lines = [
        _HEAD,
        f"Recorded of {kept['how']}:",
        "",
        *_counts(rows),
        *_peers(kept),
        "",
        "| entry | state | gradient | |",
        "|---|---|---|---|",
    ]
    lines += [_row(name, row) for name, row in rows.items()]
    lines += ["", "## Operators that ATen runs", "", "In the samples; with the reason of one of these calls.", ""]
    lines += ["| operator | why |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(why)} |" for name, why in kept["hosted"].items()]
    return "\n".join([*lines, "", rule_table.markdown(rule_table.rows())])


def write() -> None:
    """Bring the document up to date with what is recorded and with the rules."""
    FILE.write_text(render(kept_states()), encoding="utf-8")


def _counts(rows: Mapping[str, Any]) -> list[str]:
    operators = {n: row for n, row in rows.items() if not n.startswith(MODULES)}
    modules = {n: row for n, row in rows.items() if n.startswith(MODULES)}
    return [f"- {_count(group, kind)}" for kind, group in (("operators", operators), ("modules", modules)) if group]


def _count(rows: Mapping[str, Any], kind: str) -> str:
    found = Counter(row["state"] for row in rows.values())
    counted = ", ".join(f"{found[s]} {_WORDS.get(s, s)}" for s in STATES if found[s])
    trained = [row for name, row in rows.items() if entries()[name].has_gradient]
    share = sum(row["state"] in RUNS for row in trained) / max(1, len(trained))
    return (
        f"{len(rows)} entries of {kind}: {counted}. Of the {len(trained)} with a gradient, {share:.1%} are native or "
        "host calls in all samples."
    )


def _peers(kept: Mapping[str, Any]) -> list[str]:
    return [
        f'- Beside `torch.compile(backend="{name}")`, on {row["entries"]} entries with a gradient that ran in both: '
        f"{row['theirs'] / row['entries']:.1%} run there, {row['ours'] / row['entries']:.1%} here."
        for name, row in kept.get("peers", {}).items()
    ]


def _row(name: str, row: Mapping[str, Any]) -> str:
    state, gradient = (_WORDS.get(row[k], row[k]) for k in ("state", "gradient"))
    if row["state"] not in RUNS:
        note = _cell(row["reason"])
    else:
        calls = sorted({*row.get("forward", ()), *row.get("backward", ())})
        note = ", ".join(f"`{c}`" for c in calls)
    return f"| {name} | {state} | {gradient or ''} | {note} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())


if __name__ == "__main__":
    write()
