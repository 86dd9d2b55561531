"""What a front end hands to the pipeline: a graph of operator nodes and what is to be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from daceopt.ir.graph.graph import Graph


class Update(Protocol):
    """What a training step does with its gradients: the rest of one program."""

    @property
    def seed(self) -> float:
        """The gradient of the program's one differentiated output."""

    def extend(self, graph: Graph, parameters: Sequence[str], gradients: Sequence[str | None]) -> None:
        """Add to ``graph``, which computes the ``gradients`` of its inputs ``parameters`` (None: zero), more inputs,
        nodes and outputs."""


@dataclass(frozen=True)
class Reduction:
    """Gradients are averages over the ``world`` ranks of the process group ``group``: those by the inputs of
    ``parameters``, position -> name, which is the same on all ranks."""

    group: str
    world: int
    parameters: Mapping[int, str]

    def move(self, positions: Mapping[int, int]) -> Reduction:
        """The same, of inputs that are elsewhere: old position -> new one; others are dropped."""
        parameters = {positions[k]: name for k, name in self.parameters.items() if k in positions}
        return Reduction(self.group, self.world, parameters)


@dataclass(frozen=True)
class Gradients:
    """What to differentiate: outputs by inputs of the graph, by position, and whether to store or recompute (see
    ``autodiff``). With an ``update`` the gradients stay in the forward graph, for it to read.

    ``reduction``: which of them are averaged over ranks, where there is no update, which does that itself. ``sizes``:
    those of size symbols in the call that is compiled for; ``reference()``: the bytes that eager PyTorch holds for the
    backward then, of which a memory budget may be a share."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    policy: str = "recompute"
    update: Update | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    reference: Callable[[], int] | None = None
    reduction: Reduction | None = None


@dataclass
class Imported:
    """A graph of operator nodes as a front end gives it.

    ``fallbacks``: operator -> why ONNX Runtime runs it, which is warned of; ``hosted``: the same for ATen, which is
    not; lowering may add to it. ``notes`` are kept with the programs, as JSON.
    ``device``: where the arrays of a call are, in PyTorch's words.
    """

    graph: Graph
    gradients: Gradients | None = None
    fallbacks: dict[str, str] = field(default_factory=dict)
    hosted: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
