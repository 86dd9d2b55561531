"""Strategies that were searched for a training step, enacted by two ranks: see ``searched``."""

from __future__ import annotations

import pytest

from tests.distributed import ranks, searched


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return ranks.outcomes("tests.distributed.searched", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("check", [c.__name__ for c in searched.CHECKS])
def test_two_ranks_agree(check: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(check, ["did not run"]) == ["ok"] * 2, "\n".join(outcomes.get(check, ["did not run"]))
