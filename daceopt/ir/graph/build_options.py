"""How a graph is to be built, as steps of a recipe decide it."""

from __future__ import annotations

from dataclasses import dataclass

from daceopt.ir.scalar import types

FACTORS: dict[str, tuple[types.DType, ...]] = {"cpu": (types.BFLOAT16,), "cuda": types.HALVES}
"""Target -> the narrow types that its libraries multiply as they are, with sums in float32."""


@dataclass(frozen=True)
class BuildOptions:
    """``reuse_memory``: may arrays that are never alive together share memory? ``target``: the name of the
    ``codegen.Target`` that the graph is generated for, on whose device its arrays live."""

    reuse_memory: bool = False
    target: str = "cpu"

    @property
    def factors(self) -> tuple[types.DType, ...]:
        """The narrow types that factors of products and convolutions may have; others are widened before them."""
        return FACTORS.get(self.target, ())
