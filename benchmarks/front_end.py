"""A call's graph as TorchDynamo gives it to us, and no further: what measurements of later phases start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import fx, nn

if TYPE_CHECKING:
    from daceopt.capture.torch.importing import Traced


class _CapturedError(Exception):
    """Ends the call where the graph would run."""


def capture_graph(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Traced:
    """The one graph of ``module(*args, **kwargs)``, which does not run. Raises what Dynamo raises where it breaks."""
    from daceopt.modules import frames
    from daceopt.modules.description import describe

    graphs: list[Traced] = []

    def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        graphs.append(describe(graph, inputs))
        return stop

    def stop(*_: Any) -> Any:
        raise _CapturedError

    with suppress(_CapturedError):
        frames.compile_frames(module.forward, backend, nopython=True, dynamic=False)(*args, **kwargs)
    return graphs[0]
