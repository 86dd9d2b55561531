"""One part of ONNX's backend suite, operator by operator; and the list of exclusions itself."""

from __future__ import annotations

import pytest

from tests.onnx_suite.__main__ import GOAL
from tests.onnx_suite.exclusions import excluded
from tests.onnx_suite.runner import Worker
from tests.onnx_suite.shares import FIRST, check_natively, check_with_fallback


def test_the_exclusions_exist_and_leave_enough(worker: Worker) -> None:
    assert not sorted(set(excluded()) - set(worker.cases)), "excluded tests that the suite does not have"
    numeric = [name for name, (kind, is_numeric) in worker.cases.items() if kind == "node" and is_numeric]
    share = sum(name not in excluded() for name in numeric) / len(numeric)
    assert share >= GOAL, f"{share:.2%} of {len(numeric)} node tests over numbers are not excluded"


@pytest.mark.parametrize("share", FIRST)
def test_natively(worker: Worker, share: int) -> None:
    check_natively(worker, share)


def test_with_fallback(worker: Worker) -> None:
    check_with_fallback(worker, FIRST)
