"""Updates in shards beside DistributedDataParallel and one process in float64: see ``sharded``."""

from __future__ import annotations

import pytest

from tests.distributed import ranks, sharded


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.sharded", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def of_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.sharded", tmp_path_factory.mktemp("ranks"), 4, CHECKS="more")


@pytest.mark.parametrize("check", [c.__name__ for c in sharded.CHECKS])
def test_two_ranks_agree(check: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(check, ["did not run"]) == ["ok"] * 2, "\n".join(outcomes.get(check, ["did not run"]))


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", [c.__name__ for c in sharded.MORE])
def test_four_ranks_agree(check: str, of_four: dict[str, list[str]]) -> None:
    assert of_four.get(check, ["did not run"]) == ["ok"] * 4, "\n".join(of_four.get(check, ["did not run"]))
