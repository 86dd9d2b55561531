"""Cases by name: those of the suite, and those that are made from its models (``types/...``, ``attributes/...``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tests.onnx_suite import misused, retyped
from tests.onnx_suite.cases import cases

_MADE: dict[str, Any] = {retyped.PREFIX: retyped.Retyped, misused.PREFIX: misused.Misused}


def find(name: str) -> Any:
    """The case of that name. KeyError for one that does not exist."""
    prefix = name.partition("/")[0]
    return _made(name) if prefix in _MADE else cases()[name]


@lru_cache(maxsize=256)
def _made(name: str) -> Any:
    return _MADE[name.partition("/")[0]](name)
