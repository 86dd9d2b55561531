"""Whole networks on two ranks beside DistributedDataParallel and one process in float64: see ``stepwise``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.distributed import ranks, stepwise


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, list[str]]]:
    """What two processes say of one of the lists of checks; they run once."""

    def run(checks: str) -> dict[str, list[str]]:
        return ranks.outcomes(
            "tests.distributed.stepwise", tmp_path_factory.mktemp("ranks"), seconds=900, CHECKS=checks
        )

    return cache(run)


def _passes(check: str, found: dict[str, list[str]]) -> None:
    said = found.get(check, ["did not run"])
    assert said == ["ok", "ok"], "\n".join(said)


@pytest.mark.slow
@pytest.mark.parametrize("check", stepwise.CHECKS)
def test_fifty_steps_are_those_of_ddp(check: str, outcomes: Callable[[str], dict[str, list[str]]]) -> None:
    _passes(check, outcomes("few"))


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", stepwise.BROAD)
def test_fifty_steps_of_the_others(check: str, outcomes: Callable[[str], dict[str, list[str]]]) -> None:
    _passes(check, outcomes("broad"))


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("check", stepwise.MORE)
def test_fifty_steps_of_more_networks(check: str, outcomes: Callable[[str], dict[str, list[str]]]) -> None:
    _passes(check, outcomes("more"))
