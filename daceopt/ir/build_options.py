"""How a graph is to be built, as steps of a recipe decide it; what the graph computes does not depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BuildOptions:
    """``reuse_memory``: may arrays that are never alive together share memory? ``target``: the name of the
    ``codegen.Target`` that the graph is generated for, on whose device its arrays live."""

    reuse_memory: bool = False
    target: str = "cpu"
