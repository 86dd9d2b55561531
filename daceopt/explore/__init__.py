"""Looking at what daceopt does to a model: ``explain``, ``simulate``, sessions. Names load on first use.

The package is called as the function is that begins a session, and is that function: ``daceopt.explore(model, x)``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daceopt.explore.live.notebook_widget import widget as widget
    from daceopt.explore.report.explain import explain as explain
    from daceopt.explore.report.report import Report as Report
    from daceopt.explore.session.session import Session as Session
    from daceopt.explore.simulation.simulate import simulate as simulate

_NAMES = {
    "explain": "daceopt.explore.report.explain",
    "Report": "daceopt.explore.report.report",
    "Session": "daceopt.explore.session.session",
    "simulate": "daceopt.explore.simulation.simulate",
    "widget": "daceopt.explore.live.notebook_widget",
}
__all__ = ["Report", "Session", "explain", "simulate", "widget"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'daceopt.explore' has no attribute {name!r}")
    # The function takes the place of its module of the same name, which importing that module has put here.
    value = globals()[name] = getattr(importlib.import_module(_NAMES[name]), name)
    return value


class _Package(ModuleType):
    def __call__(self, model: Any, *inputs: Any, **options: Any) -> Session:
        """A session on ``model``: see :func:`daceopt.explore.session.session.explore`."""
        from daceopt.explore.session.session import explore

        return explore(model, *inputs, **options)


sys.modules[__name__].__class__ = _Package
