"""Whole networks on two ranks beside DistributedDataParallel and one process in float64: see ``stepwise``."""

from __future__ import annotations

import pytest

from tests.distributed import ranks, stepwise


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.stepwise", tmp_path_factory.mktemp("ranks"), seconds=900)


@pytest.fixture(scope="module")
def broad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.stepwise", tmp_path_factory.mktemp("ranks"), seconds=900, CHECKS="broad")


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.stepwise", tmp_path_factory.mktemp("ranks"), seconds=900, CHECKS="more")


@pytest.mark.slow
@pytest.mark.parametrize("check", stepwise.CHECKS)
def test_fifty_steps_are_those_of_ddp(check: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(check, ["did not run"]) == ["ok", "ok"], "\n".join(outcomes.get(check, ["did not run"]))


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", stepwise.BROAD)
def test_fifty_steps_of_the_others(check: str, broad: dict[str, list[str]]) -> None:
    assert broad.get(check, ["did not run"]) == ["ok", "ok"], "\n".join(broad.get(check, ["did not run"]))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("check", stepwise.MORE)
def test_fifty_steps_of_more_networks(check: str, more: dict[str, list[str]]) -> None:
    assert more.get(check, ["did not run"]) == ["ok", "ok"], "\n".join(more.get(check, ["did not run"]))
