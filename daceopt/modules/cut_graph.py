"""A graph with sizes that only the data decide, as Dynamo calls it: programs, and between them what decides sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from daceopt.capture.torch import cutting, guards
from daceopt.modules.breaks import WRONG_CALL, versions
from daceopt.modules.by_size import own_mode
from daceopt.modules.description import describe

if TYPE_CHECKING:
    from daceopt.modules.backend import Backend, CompiledGraph


class CutGraph:
    """The parts of a graph in a call; see ``cutting``. Raises Differs for sizes that they are not for, and what the
    user asserts: eager PyTorch may make the call if nothing has been changed by then."""

    def __init__(self, backend: Backend, graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
        """Compile the parts; ``inputs``: the arguments of a call."""
        self._backend = backend
        count = len(backend.graphs)
        try:
            with own_mode():
                outer = cutting.in_parts(graph, inputs, self._part, may_fail=backend.is_repeated)
        except Exception:
            del backend.graphs[count:]
            raise
        for made in backend.graphs[count:]:
            backend.stats.record(made.piece.pair, _shapes(made))
        self._forward: Callable[..., Any] = outer.forward

    def _part(self, part: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return self._backend.part(describe(part, inputs))

    def __call__(self, *arguments: Any) -> Any:
        ran, before = self._backend.ran, versions(arguments)
        try:
            return self._forward(*arguments)
        except (cutting.Differs, AssertionError) as error:
            self._backend.ran = ran
            setattr(error, WRONG_CALL, versions(arguments) == before)
            raise


def _shapes(graph: CompiledGraph) -> dict[str, tuple[int, ...]]:
    """Of the inputs of a program by role, as they may be in a call."""
    values = [(kind, graph.traced.inputs[k]) for kind, k in graph.piece.binding.inputs]
    shapes = [tuple(map(guards.example, x.shape)) if kind == "tensor" else (0, guards.example(x)) for kind, x in values]
    return {f"input:{k}": shape for k, shape in enumerate(shapes)}
