"""Looking at what daceopt does to a model: ``explain``, ``simulate`` and their reports. Names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daceopt.explore.explain import explain as explain
    from daceopt.explore.report import Report as Report
    from daceopt.explore.simulate import simulate as simulate

_NAMES = {
    "explain": "daceopt.explore.explain",
    "Report": "daceopt.explore.report",
    "simulate": "daceopt.explore.simulate",
}
__all__ = ["Report", "explain", "simulate"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'daceopt.explore' has no attribute {name!r}")
    # The function takes the place of its module of the same name, which importing that module has put here.
    value = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
    return value
