"""What several of these tests ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.checking import interpreted


@pytest.fixture
def quick() -> Iterator[None]:
    with interpreted():
        yield
