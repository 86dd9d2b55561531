"""A program: the forward graph, its backward graph if there is one, and what their arrays are to the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from daceopt.ir.control.imported import Gradients
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.blocked import block
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar.dims import Dim

DIRECTIONS = ("forward", "backward")


class Kind(Enum):
    """What an array at the boundary is: an argument or result of the model, or a gradient of one."""

    INPUT = "input"
    OUTPUT = "output"
    GRADIENT_OF_OUTPUT = "grad"
    GRADIENT_OF_INPUT = "grad_input"


class Role(NamedTuple):
    """``kind`` number ``position``; its text is what a manifest says."""

    kind: Kind
    position: int

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.position}"


@dataclass
class Program:
    """What a recipe transforms.

    ``gradients``: what to differentiate; None for inference, and where it is done. ``inputs`` and ``received`` are the
    roles of the forward's and the backward's inputs by name; ``returned`` those of the backward's outputs in order.
    Outputs of the forward have the role of their position, whatever array is there. What the forward leaves for the
    backward are ``forward.saved`` and ``backward.saved``, in the same order.
    """

    forward: Graph
    gradients: Gradients | None = None
    backward: Graph | None = None
    inputs: dict[str, Role] = field(default_factory=dict)
    received: dict[str, Role] = field(default_factory=dict)
    returned: list[Role] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, gradients: Gradients | None = None) -> Program:
        """The program of an imported graph, not differentiated yet."""
        return cls(graph, gradients, inputs={n: Role(Kind.INPUT, k) for k, n in enumerate(graph.inputs)})

    def copy(self) -> Program:
        """A program of its own that is the same."""
        backward = None if self.backward is None else self.backward.copy()
        names = dict(self.inputs), dict(self.received), list(self.returned)
        return Program(self.forward.copy(), self.gradients, backward, *names)

    def directions(self) -> Iterator[Graph]:
        """The forward graph, then the backward graph as it is by then."""
        yield self.forward
        if self.backward is not None:
            yield self.backward

    def by_direction(self) -> Iterator[tuple[str, Graph]]:
        """The same, each with the name of its direction."""
        return zip(DIRECTIONS, self.directions())

    def roles(self, graph: Graph) -> dict[str, str]:
        """Array -> text of its role at the boundary of one direction."""
        outputs = self.returned if graph is self.backward else [Role(Kind.OUTPUT, k) for k in range(len(graph.outputs))]
        inputs = self.received if graph is self.backward else self.inputs
        roles = {**inputs, **dict(zip(graph.outputs, outputs, strict=True))}
        return {name: str(role) for name, role in roles.items()}

    def align(self) -> None:
        """Let the backward graph read what is saved in the layout in which the forward graph leaves it."""
        if self.backward is None:
            return
        forward, backward = self.forward, self.backward
        pairs = list(zip(forward.saved, backward.saved, strict=True))
        blocked = [name for source, name in pairs if len(forward.shape(source)) != len(backward.shape(name))]
        if blocked:
            block(backward, blocked)
        for source, name in zip(list(forward.saved), list(backward.saved), strict=True):
            if forward.strides(source) != backward.strides(name):
                _follow_layout(backward, name, forward.strides(source))


def _follow_layout(graph: Graph, name: str, strides: Sequence[Dim]) -> None:
    """Lay out the saved array ``name`` as the forward graph did; what cannot follow reads a copy in the old layout."""
    try:
        graph.set_strides(name, strides)
    except ValueError:
        saved = list(graph.saved)
        twin = graph.add_array(name, graph.shape(name), graph.dtype(name), graph.strides(name))
        graph.replace_uses(name, twin)
        graph.saved = saved
        graph.set_strides(name, strides)
        Builder(graph, "layout").copy(name, out=twin)
