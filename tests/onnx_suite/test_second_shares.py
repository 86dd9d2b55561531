"""The other part of ONNX's backend suite, for a second process, by the recipe that users have."""

from __future__ import annotations

import pytest

from tests.onnx_suite.runner import Worker
from tests.onnx_suite.shares import SECOND, check_natively, check_with_fallback


@pytest.mark.parametrize("share", SECOND)
def test_natively(worker: Worker, share: int) -> None:
    check_natively(worker, share, "cpu")


def test_with_fallback(worker: Worker) -> None:
    check_with_fallback(worker, SECOND)
