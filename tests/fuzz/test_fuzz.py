"""Random modules, compiled by the recipe ``auto`` in both directions, beside eager PyTorch and float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.capture.torch.interpreted import compile_interpreted
from tests.fuzz import batch, execution
from tests.fuzz.__main__ import bad, line
from tests.fuzz.generator import program
from tests.fuzz.program import Line, Program
from tests.fuzz.worker import COMMAND
from tests.onnx_suite.runner import Worker

BATCH = 10  # programs compiled together
DEFAULT = range(1)
LONG = range(len(DEFAULT), 400)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker(COMMAND)
    yield made
    made.close()


@pytest.mark.parametrize("part", DEFAULT)
def test_random_modules(worker: Worker, part: int) -> None:
    _check(worker, part)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", LONG)
def test_thousands_of_random_modules(worker: Worker, part: int) -> None:
    _check(worker, part)


def _check(worker: Worker, part: int) -> None:
    seeds = [str(seed) for seed in range(part * BATCH, (part + 1) * BATCH)]
    results = worker.run(seeds, "build", "auto")
    wrong = [line(seed, result)[:400] for seed, result in results.items() if bad(result)]
    assert len(results) == BATCH and not wrong, "\n".join(wrong)


def test_a_program_is_its_seed() -> None:
    first = program(3).source()
    program.cache_clear()
    assert program(3).source() == first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_roundings_are_disturbed_in_every_type(dtype: torch.dtype) -> None:
    x = torch.ones(100, dtype=dtype)
    with execution.Rounding(0):
        moved = (x * 1, x.clone().mul_(1))
    for found in moved:
        assert set(((found.double() - 1) / torch.finfo(dtype).eps).round().tolist()) == {-1, 0, 1}


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Program(0, {"x": "draw(1, 3, dtype=torch.float32).requires_grad_()"}, (Line("v0 = x.tanh()"),), "v0")
    trial = batch.Trial(subject, compile_interpreted, "none")
    assert trial._disturbed  # drawn before the plant
    real = batch.execution.run

    def planted(*arguments: Any) -> Any:
        found = real(*arguments)
        found.values["gradient 0"] = found.values["gradient 0"] + 1e-5
        return found

    monkeypatch.setattr(batch.execution, "run", planted)
    with pytest.raises(AssertionError, match="gradient 0"):
        trial.check()
