"""A thirtieth of PyTorch's database, compiled, with gradients."""

from __future__ import annotations

import pytest

from tests.onnx_suite.runner import Worker
from tests.opinfo.shares import PARTS, check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", range(PARTS))
def test_as_in_eager(worker: Worker, part: int) -> None:
    check(worker, part)
