"""``docs/results/world.md``, from the results that are kept: totals by package, then rows."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import COMPILED, EAGER
from benchmarks.harness import OURS

WORLD = Path(__file__).resolve().parents[2] / "docs" / "results" / "world.md"
RECORDED = Path(__file__).resolve().parent / "results.jsonl"
"""The results that ``WORLD`` shows, a line for each, so that other machines and days measure what is left."""

Stages = dict[str, dict[str, Any]]
Key = tuple[str, str, str]
_INSTALLED = re.compile(r"/[^\s`\"]*/(?=site-packages/|python3\.\d+/)")  # folders of this machine
_HIDDEN = ("label", "package", "mode", "stage", "traceback", "machine", "commit")
_HEAD = """# The world's programs

Written by `python -m benchmarks world --record` from the rows measured so far;
docs/extending/benchmark.md says what a row is.

- right: two steps (results, gradients and buffers, with an update between them) are as near to float64 as rounding
  explains, beside the same steps of eager PyTorch. Where eager PyTorch itself is off by more than a thousandth (relus
  that read the other side of zero, updates that lead elsewhere), or an error in float32 is gone for weights that differ
  by a hundredth (a single number beyond a kink), the network has to be right in double precision, too, to 1e-6.
- captured: what becomes of the first call of each network (where that is in pieces, of the second, which may find
  hooks that the first has installed): one graph (whole), several (pieces), none (eager); in brackets whether
  `torch.compile(fullgraph=True)` takes it whole.
- programs: after the first size, a second and a third; calls of Python inside of programs, and calls in eager.
- speed: medians of interleaved steps, a peer's time over ours (above 1: ours is faster). First steps are cold, in
  seconds and, in the column behind, in processor seconds. Times of a busy machine are said to be so: judge ratios
  alone, and those with care.
- onnx-files: ONNX Runtime is in place of eager PyTorch, and without its fused operators in place of float64.
- peak MB: of the process that measured, with the packages that it imports and all contenders.
"""
_COLUMNS = (
    "program",
    "mode",
    "right",
    "error (eager's)",
    "captured (torch.compile)",
    "programs, 3 sizes",
    "calls of Python",
    "eager calls",
    "over eager",
    "over torch.compile",
    "first step (torch.compile's)",
    "processor s",
    "peak MB",
    "measured",
    "what falls short",
)


def line(found: dict[str, Any]) -> str:
    """A result in a line."""
    return ", ".join(f"{k} {v}" for k, v in found.items() if k not in _HIDDEN)[:600]


def write(folder: Path, path: Path = WORLD, recorded: Path = RECORDED) -> None:
    """The tables of all results, in ``path``: of the recorded ones, and of those in ``folder``, which are recorded."""
    results = {**known(recorded), **{key_of(r): _without_folders(r) for r in _results(folder)}}
    recorded.write_text("".join(json.dumps(results[k]) + "\n" for k in sorted(results)), encoding="utf-8")
    rows = _rows(results)
    machines = sorted({(r["machine"], r["commit"]) for stages in rows.values() for r in stages.values()})
    where = {pair: f"m{k}" for k, pair in enumerate(machines, 1)}
    text = [_HEAD, "Measured on:", ""]
    text += [f"- {name}: {machine}, commit {commit}" for (machine, commit), name in where.items()]
    text += ["", "## By package", "", *_totals(rows), "", "## Rows", "", *_table(_COLUMNS, _cells(rows, where)), ""]
    path.write_text("\n".join(text), encoding="utf-8")


def known(recorded: Path = RECORDED) -> dict[Key, dict[str, Any]]:
    """The recorded results."""
    lines = recorded.read_text(encoding="utf-8").splitlines() if recorded.exists() else []
    return {key_of(result): result for result in map(json.loads, lines)}


def key_of(result: dict[str, Any]) -> Key:
    """Label, mode and stage."""
    return result["label"], result["mode"], result["stage"]


def _results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def _without_folders(result: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps({k: v for k, v in result.items() if k != "traceback"})
    cleaned: dict[str, Any] = json.loads(_INSTALLED.sub("", text))
    return cleaned


def _rows(results: Mapping[Key, dict[str, Any]]) -> dict[tuple[str, str], Stages]:
    """(Label, mode) -> the result of each stage."""
    rows: dict[tuple[str, str], Stages] = defaultdict(dict)
    for (label, mode, stage), result in sorted(results.items()):
        rows[label, mode][stage] = result
    return rows


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *lines]
    return ["| " + " | ".join(str(c).replace("|", "/").replace("\n", " ") for c in row) + " |" for row in cells]


# -------------------------------------------------------------------- totals


def _totals(rows: dict[tuple[str, str], Stages]) -> list[str]:
    groups: dict[tuple[str, str], list[Stages]] = defaultdict(list)
    for (label, mode), stages in rows.items():
        groups[label.partition("/")[0], mode].append(stages)
    heads = (
        *("package", "mode", "rows", "whole / pieces / eager", "right / wrong / not comparable"),
        *("over eager, mean", "over torch.compile, mean", "fails"),
    )
    return _table(heads, [[*key, *_total(group)] for key, group in sorted(groups.items())])


def _total(group: Sequence[Stages]) -> list[str]:
    status = Counter(s["capture"].get("status") for s in group if "capture" in s)
    right = Counter(s["right"].get("right") for s in group if "right" in s and "right" in s["right"])
    fails = sum(any("failure" in r for r in s.values()) for s in group)
    means = [_mean([r for s in group if (r := ratio(s, peer)) is not None]) for peer in (EAGER, COMPILED)]
    statuses = " / ".join(str(status[k]) for k in ("whole", "pieces", "eager"))
    return [str(len(group)), statuses, " / ".join(str(right[k]) for k in (True, False, None)), *means, str(fails)]


def _mean(ratios: Sequence[float]) -> str:
    return f"{statistics.geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else ""


def ratio(stages: Stages, peer: str) -> float | None:
    """A peer's time over ours, where both were measured."""
    medians = stages.get("speed", {}).get("medians", {})
    return medians[peer] / medians[OURS] if peer in medians and OURS in medians else None


# -------------------------------------------------------------------- rows


def _cells(rows: dict[tuple[str, str], Stages], where: dict[tuple[str, str], str]) -> list[list[str]]:
    lines = []
    for (label, mode), stages in sorted(rows.items()):
        places = sorted({where[r["machine"], r["commit"]] for r in stages.values()})
        cells = [*_found(stages), *_timed(stages), _peak(stages), " ".join(places), reason(stages)]
        lines.append([label, mode, *cells])
    return lines


def _found(stages: Stages) -> list[str]:
    right, capture = stages.get("right", {}), stages.get("capture", {})
    verdict = {True: "yes", False: "**no**", None: "not comparable"}[right["right"]] if "right" in right else ""
    errors = f"{right['error']:.1e} ({right[_EAGERS]:.1e})" if _EAGERS in right else ""
    errors += f", {right[_DOUBLES]:.1e} in double precision" if _DOUBLES in right else ""
    captured = f"{capture['status']}, {capture['graphs']}{_short(capture['peer'])}" if "status" in capture else ""
    programs = " ".join(map(str, [right["programs"], *right["sizes"]])) if "sizes" in right else ""
    return [
        verdict,
        errors,
        captured,
        programs[:60],
        str(right.get("host calls", "")),
        str(right.get("eager calls", "")),
    ]


_EAGERS, _DOUBLES = "eager's error", "error in double precision"


def _short(peer: str) -> str:
    return f" ({peer if peer == 'whole' else 'breaks'})" if peer else ""


def _timed(stages: Stages) -> list[str]:
    speed = stages.get("speed", {})
    ratios = [ratio(stages, peer) for peer in (EAGER, COMPILED)]
    firsts = [_first(speed.get(name, {})) for name in ("first", "first processor seconds")]
    return [*("" if r is None else f"{r:.2f}" for r in ratios), *firsts]


def _first(seconds: Mapping[str, float]) -> str:
    """Our first step, and torch.compile's in brackets."""
    theirs = f" ({seconds[COMPILED]:.1f})" if COMPILED in seconds else ""
    return f"{seconds[OURS]:.1f}{theirs}" if OURS in seconds else ""


def _peak(stages: Stages) -> str:
    return str(max((r.get("peak MB", 0) for r in stages.values()), default="") or "")


def reason(stages: Stages) -> str:
    """What falls short, and why."""
    found = [f"{stage}: {r['failure']}" for stage, r in stages.items() if "failure" in r]
    right = stages.get("right", {})
    found += [right[k] for k in ("fault", "note") if right.get(k)]
    listed = (stages.get("capture", {}).get("reasons", []), right.get("why", []))
    found += [text for texts in listed for text in texts]
    found += [f"{who} cannot take part: {why}" for who, why in stages.get("speed", {}).get("absent", {}).items()]
    return "; ".join(dict.fromkeys(found))[:400]
