"""``data_parallel`` on two ranks beside DistributedDataParallel and one process in float64: see ``equality``."""

from __future__ import annotations

import pytest

from tests.distributed import equality, ranks


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.equality", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.equality", tmp_path_factory.mktemp("ranks"), CHECKS="more")


@pytest.mark.parametrize("check", [c.__name__ for c in equality.CHECKS])
def test_ranks_agree(check: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(check, ["did not run"]) == ["ok", "ok"], "\n".join(outcomes.get(check, ["did not run"]))


@pytest.mark.slow
@pytest.mark.breadth
@pytest.mark.parametrize("check", [c.__name__ for c in equality.MORE])
def test_ranks_agree_in_more(check: str, more: dict[str, list[str]]) -> None:
    assert more.get(check, ["did not run"]) == ["ok", "ok"], "\n".join(more.get(check, ["did not run"]))
