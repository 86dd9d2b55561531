"""The process that runs the batches of a file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.onnx_suite.runner import Worker
from tests.opinfo.worker import COMMAND


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """It starts in fifteen seconds or so, and lives as long as the file's tests."""
    made = Worker(COMMAND)
    yield made
    made.close()
