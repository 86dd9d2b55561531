"""What a training step needs of a model that averages its gradients over ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from daceopt.errors import Unsupported

if TYPE_CHECKING:
    from daceopt.ir.control.imported import Imported, Reduction
    from daceopt.passes.recipe import Recipe
    from daceopt.programs.tuning.result import TuningResult
    from daceopt.programs.tuning.search import Make


@dataclass(frozen=True)
class TunedGraph:
    """A graph whose exchanges are tuned: what identifies it, how it is loaded, whether it is that of a training step,
    and the ``recipe`` that was asked for."""

    fingerprint: str
    load: Callable[[], Imported]
    of_step: bool
    recipe: str | Recipe


Tuner = Callable[[TunedGraph, "Make"], "TuningResult"]
"""Finds out which way of exchanging is the fastest, which is that of the exchange from then on."""


class StepExchange(Protocol):
    """Found as ``daceopt_exchange`` on a module. ``refusal``: why no program can exchange now, or "". ``rank`` of
    ``world``: this process. ``tuner``: what the first program asks for the fastest way to exchange."""

    refusal: str
    rank: int
    world: int
    tuner: Tuner | None

    def whole(self) -> AbstractContextManager[None]:
        """Within the block the program of a step exchanges gradients."""

    def reduction(self, arguments: Mapping[int, object]) -> Reduction | None:
        """Which of the arguments are parameters whose gradients are averaged."""

    def step_recipe(self, recipe: str | Recipe, graph: str = "") -> Recipe:
        """The recipe of a training step with the steps that exchange; ``graph`` identifies what it is for."""

    def sharded_parameters(self) -> Mapping[str, torch.Tensor]:
        """The parameters that are updated in shards, by name; none where there is one rank."""

    def agree(self, names: Sequence[str], what: str) -> None:
        """Raises WorkerError, on all ranks, unless all are about to gather these ``names`` of ``what``."""

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """The tensors of rank 1 of all ranks, one after another."""

    def watch_pair(self, pair: object) -> Any:
        """Programs whose failed exchanges name the rank at fault."""


def exchange_of(model: nn.Module) -> StepExchange | None:
    """The exchange of ``model``, or of a module in it. Raises Unsupported where there are several."""
    exchanges = [e for m in model.modules() if (e := m.__dict__.get("daceopt_exchange")) is not None]
    if len(exchanges) > 1:
        raise Unsupported(f"{len(exchanges)} modules of the model exchange gradients; expected one")
    return exchanges[0] if exchanges else None
