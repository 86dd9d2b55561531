"""``excluded.txt``: what is not as in eager PyTorch, each with the reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.onnx_suite.exclusions import read

FILE = Path(__file__).parent / "excluded.txt"


@cache
def excluded() -> dict[str, str]:
    """Name of an entry, or of an entry and a type -> reason."""
    return read(FILE)
