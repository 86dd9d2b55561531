"""``data_parallel``, updates in shards and strategies that were searched, on two ranks beside DistributedDataParallel
and one process in float64: see ``equality``, ``sharded``, ``searched`` and ``stepwise``."""

from __future__ import annotations

import pytest

from tests.distributed import checks, equality, ranks, sharded, stepwise


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.checks", tmp_path_factory.mktemp("ranks"), seconds=900)


@pytest.mark.slow
@pytest.mark.parametrize("check", checks.CHECKS)
def test_ranks_agree(check: str, outcomes: dict[str, list[str]]) -> None:
    _passes(check, outcomes)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.equality", tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", [c.__name__ for c in equality.MORE])
def test_ranks_agree_in_more(check: str, more: dict[str, list[str]]) -> None:
    _passes(check, more)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.sharded", tmp_path_factory.mktemp("ranks"), 4)


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", [c.__name__ for c in sharded.MORE])
def test_four_ranks_agree(check: str, of_four: dict[str, list[str]]) -> None:
    _passes(check, of_four, world=4)


@pytest.fixture(scope="module")
def broad(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return _steps("broad", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", stepwise.BROAD)
def test_fifty_steps_of_networks(check: str, broad: dict[str, list[str]]) -> None:
    _passes(check, broad)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return _steps("more", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.parametrize("check", stepwise.MORE)
def test_fifty_steps_of_more_networks(check: str, deep: dict[str, list[str]]) -> None:
    _passes(check, deep)


def _steps(which: str, folders: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.stepwise", folders.mktemp("ranks"), seconds=900, CHECKS=which)


def _passes(check: str, found: dict[str, list[str]], world: int = ranks.WORLD) -> None:
    said = found.get(check, ["did not run"])
    assert said == ["ok"] * world, "\n".join(said)
