"""What a training step needs of a model that averages its gradients over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from daceopt.errors import Unsupported

if TYPE_CHECKING:
    from daceopt.ir.imported import Reduction
    from daceopt.passes.recipe import Recipe


class StepExchange(Protocol):
    """Found as ``daceopt_exchange`` on a module. ``refusal``: why no program can exchange now, or ""."""

    refusal: str

    def whole(self) -> AbstractContextManager[None]:
        """Within the block the program of a step exchanges gradients."""

    def reduction(self, arguments: Mapping[int, Any]) -> Reduction | None:
        """Which of the arguments are parameters whose gradients are averaged."""

    def recipe(self, given: str | Recipe) -> Recipe:
        """The recipe with the steps that exchange."""

    def watched(self, pair: Any) -> Any:
        """Programs whose failed exchanges name the rank at fault."""


def exchange_of(model: nn.Module) -> StepExchange | None:
    """The exchange of ``model``, or of a module in it. Raises Unsupported where there are several."""
    found = [e for m in model.modules() if (e := m.__dict__.get("daceopt_exchange")) is not None]
    if len(found) > 1:
        raise Unsupported(f"{len(found)} modules of the model exchange gradients; expected one")
    return found[0] if found else None
