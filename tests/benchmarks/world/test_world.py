"""The suite of the world's programs: its catalogue, its smallest rows, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.world import capturing, report
from benchmarks.world.catalogue import chosen, rows
from benchmarks.world.program import fixed, flat, prepared, run
from benchmarks.world.rightness import built, judged, ours

WHOLE = (
    "hypernetwork",
    "contrastive",
    "prototypes",
    "pruned",
    "memory_network",
    "sinkhorn",
    "deep_operator",
    "splatting",
    "retention",
    "linear_attention",
    "performer",
    "real_nvp",
    "differentiable_physics",
    "deep_q_learning",
    "soft_actor_critic",
    "radiance_field",
    "low_rank_adapters",
)
RIGHT = ("hypernetwork", "sinkhorn")


def test_rows_have_one_name_each_and_known_environments() -> None:
    known = rows()
    assert len(known) > 400 and len([row for row in known.values() if row.package == "programs"]) >= 66
    assert {row.environment for row in known.values()} == {"main", "world", "vision"}
    assert chosen(["programs/maml"]) == [known["programs/maml"]]
    with pytest.raises(KeyError, match="no program or package is called nothing"):
        chosen(["nothing"])


@pytest.mark.parametrize("name", WHOLE)
def test_a_small_program_is_captured_whole(name: str) -> None:
    program = built(rows()[f"programs/{name}"])
    found = capturing.capture(program, training=True)
    assert (found["status"], found["reasons"]) == ("whole", [])


@pytest.mark.parametrize("name", RIGHT)
def test_a_small_program_is_right(name: str) -> None:
    program = built(rows()[f"programs/{name}"])
    eager = flat(run(program, prepared(program.networks, fixed), training=True))
    found = flat(run(program, prepared(program.networks, ours), training=True))
    assert judged(program, True, found, eager)["right"]


def test_the_report_has_totals_and_a_reason_for_what_falls_short(tmp_path: Path) -> None:
    about = {"label": "p/a", "package": "p", "mode": "training", "machine": "m", "commit": "c"}
    captured = {**about, "stage": "capture", "status": "pieces", "graphs": 2, "reasons": ["a print"], "peer": "whole"}
    medians = {"eager": 3.0, "torch.compile": 2.0, "daceopt": 1.0}
    speed = {**about, "stage": "speed", "medians": medians, "first": {"daceopt": 1.0}, "absent": {}}
    for result in (captured, speed):
        (tmp_path / f"{result['stage']}.json").write_text(json.dumps(result))
    report.write(tmp_path, tmp_path / "WORLD.md")
    text = (tmp_path / "WORLD.md").read_text()
    assert "| p | training | 1 | 0 / 1 / 0 | 0 / 0 / 0 | 3.00 (1) | 2.00 (1) | 0 |" in text
    assert "pieces, 2 (whole)" in text and "a print" in text
