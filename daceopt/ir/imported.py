"""What a front end hands to the pipeline: a graph of operator nodes and what is to be differentiated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daceopt.ir.graph import Graph


@dataclass(frozen=True)
class Gradients:
    """What to differentiate: outputs by inputs of the graph, by position, and whether to store or recompute (see
    ``autodiff``)."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    policy: str = "recompute"


@dataclass
class Imported:
    """A graph of operator nodes as a front end gives it.

    ``fallbacks``: operator -> why ONNX Runtime runs it, which is warned of; ``hosted``: the same for ATen, which is
    not; lowering may add to it. ``notes`` are kept with the programs, as JSON.
    """

    graph: Graph
    gradients: Gradients | None = None
    fallbacks: dict[str, str] = field(default_factory=dict)
    hosted: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
