"""The suite of the world's programs: its catalogue, its smallest rows, and the report."""

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.checking import Check
from benchmarks.world import capturing, report
from benchmarks.world.catalogue import chosen, rows
from benchmarks.world.program import Program, fixed, flat, prepared, run
from benchmarks.world.rightness import built, judged, largest, ours

WHOLE = (
    *("hypernetwork", "sinkhorn", "splatting", "retention", "real_nvp", "differentiable_physics", "low_rank_adapters"),
    *(
        pytest.param(name, marks=pytest.mark.breadth)  # as all rows are by `make test-world`
        for name in """contrastive prototypes pruned memory_network deep_operator linear_attention performer
        deep_q_learning soft_actor_critic radiance_field""".split()
    ),
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


@pytest.mark.parametrize("spoil", [0.0, 1e-4])
def test_a_network_that_float32_cannot_judge_is_compared_in_double_precision(spoil: float) -> None:
    torch.manual_seed(0)
    layers = [(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(30)]
    program = Program(nn.Sequential(*(layer for block in layers for layer in block)), (torch.randn(8, 32),))

    def spoiled(network: nn.Module) -> nn.Module:
        with torch.no_grad():
            network[-2].weight.mul_(1 + spoil)  # type: ignore[index, operator]
        return network

    eager, found = (flat(run(program, prepared(program.networks, who), training=True)) for who in (fixed, spoiled))
    verdict = judged(program, True, found, eager, spoiled)
    assert verdict["eager's error"] > 0.1 and verdict["right"] == (not spoil)
    assert ("off by" in verdict["fault"]) == bool(spoil)


@pytest.mark.parametrize("spoil", [0.0, 1e-3])
def test_a_number_beyond_a_kink_is_no_error_of_the_program(spoil: float) -> None:
    torch.manual_seed(0)
    program = Program(nn.Sequential(nn.Linear(4, 512), nn.ReLU()), (torch.randn(4, 4),))
    with torch.no_grad():
        program.networks[0].bias[0] -= program.networks[0](*program.inputs)[0, 0] - 5e-6  # type: ignore

    def rounded(network: nn.Module) -> nn.Module:
        bias = network[0].bias  # type: ignore[index]
        if bias.dtype == torch.float32:  # type: ignore[union-attr]
            bias.data[0] -= 1e-5  # type: ignore
            bias.data[1:] *= 1 + spoil  # type: ignore
        return network

    eager, found = (flat(run(program, prepared(program.networks, who), training=True)) for who in (fixed, rounded))
    verdict = judged(program, True, found, eager, rounded)
    assert verdict["error"] > 1e-2 > verdict["eager's error"]
    assert verdict["right"] == (not spoil) == ("error in double precision" in verdict)


@pytest.mark.parametrize(("found", "expected"), [((1.0, 2.0), 0.0), ((1.0, 2.5), 0.5 / 5**0.5), ((1.0, nan), nan)])
def test_infinite_elements_hide_no_error(found: tuple[float, ...], expected: float) -> None:
    mine, true = torch.tensor([*found, inf]), torch.tensor([1.0, 2.0, inf])
    assert largest([mine], [true]) == pytest.approx(expected, nan_ok=True)
    assert (Check([true], [true]).fault([mine]) is None) == (expected == 0)


def test_what_a_step_changes_in_buffers_is_compared() -> None:
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("constant", torch.full((2,), float("inf")))
    program = Program(norm, (torch.tensor([[1.0, 2.0], [3.0, 6.0]]),))
    (first, *_), (evaluated,) = run(program, norm.train(), True, steps=1), run(program, norm.eval(), False, steps=1)
    assert len(first) == 6 and len(evaluated) == 1  # a result, two gradients, running means and variances, their count


def test_the_report_has_totals_and_a_reason_for_what_falls_short(tmp_path: Path) -> None:
    about = {"label": "p/a", "package": "p", "mode": "training", "machine": "m", "commit": "c"}
    reasons = ["a print, at /opt/p/lib/site-packages/p/a.py:1", "an item"]
    captured = {**about, "stage": "capture", "status": "pieces", "graphs": 2, "reasons": reasons, "peer": "whole"}
    medians = {"eager": 3.0, "torch.compile": 2.0, "daceopt": 1.0}
    speed = {**about, "stage": "speed", "medians": medians, "first": {"daceopt": 1.0}, "absent": {}}
    for result in (captured, speed):
        (tmp_path / f"{result['stage']}.json").write_text(json.dumps(result))
    recorded = tmp_path / "results.jsonl"
    report.write(tmp_path, tmp_path / "WORLD.md", recorded)
    text = (tmp_path / "WORLD.md").read_text()
    assert "| p | training | 1 | 0 / 1 / 0 | 0 / 0 / 0 | 3.00 (1) | 2.00 (1) | 0 |" in text
    assert "pieces, 2 (whole)" in text and "a print, at site-packages/p/a.py:1; an item" in text
    report.write(tmp_path / "of another machine", tmp_path / "WORLD.md", recorded)
    assert (tmp_path / "WORLD.md").read_text() == text
