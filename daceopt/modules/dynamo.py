"""``torch.compile(model, backend="daceopt")``: the backend that optimized modules use themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from daceopt.capture.torch.tracing import OURS
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break, as_error
from daceopt.modules.dispatch import note
from daceopt.modules.options import check
from daceopt.programs.stats import Stats


def daceopt(
    graph: GraphModule, example_inputs: Sequence[object], mode: str | None = None, **settings: Any
) -> Callable[..., Any]:
    """The backend; ``torch.compile(..., options={...})`` takes ``recipe``, ``fallback``, ``verify`` and ``tune``
    as ``optimized_module`` does. ``mode`` has no meaning here and is accepted, so that models need no change.
    """
    chosen = settings.pop("options", None) or {}
    options = check(**{**settings, **chosen})

    def refuse(reason: Break, error: BaseException) -> None:
        if options.fallback == "raise":
            raise as_error(reason, error)
        note({}, reason.text, f"a function {reason}", options.fallback, reason.place)

    return Backend(options, Stats(), refuse)(graph, example_inputs)


setattr(daceopt, OURS, True)
