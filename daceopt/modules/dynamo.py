"""``torch.compile(model, backend="daceopt")``: the backend that optimized modules use themselves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from daceopt.capture.torch.tracing import OURS
from daceopt.errors import DaceoptError, FallbackWarning, Unsupported
from daceopt.logs import caller_depth
from daceopt.modules.backend import Backend
from daceopt.modules.options import check
from daceopt.programs.stats import Stats


def daceopt(
    graph: GraphModule, example_inputs: Sequence[Any], mode: str | None = None, **given: Any
) -> Callable[..., Any]:
    """The backend; ``torch.compile(..., options={...})`` takes ``recipe``, ``fallback``, ``verify`` and ``tune``
    as ``optimized_module`` does. ``mode`` has no meaning here and is accepted, so that models need no change.
    """
    chosen = given.pop("options", None) or {}
    options = check(**{**given, **chosen})

    def refused(reason: str, error: BaseException) -> None:
        if options.fallback == "raise":
            raise error if isinstance(error, DaceoptError) else Unsupported(reason)
        if options.fallback == "warn":
            message = f"a part runs in eager PyTorch: {reason}"
            warnings.warn(message, FallbackWarning, stacklevel=caller_depth())

    return Backend(options, Stats(), refused)(graph, example_inputs)


setattr(daceopt, OURS, True)
