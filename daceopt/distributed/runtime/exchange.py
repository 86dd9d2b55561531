"""What the ranks of one model exchange: which gradients, in which buckets, over which process group."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from daceopt.distributed.runtime.enactment import enacting
from daceopt.distributed.runtime.faults import Watch
from daceopt.distributed.search.strategy import Strategy
from daceopt.errors import ArgumentsChanged, FallbackWarning, RunError, Unsupported, WorkerError
from daceopt.ir.control.imported import Reduction
from daceopt.ir.nodes.collective import Exchanged, listed_number, sequence_number
from daceopt.passes.choice import Choice
from daceopt.passes.recipe import Recipe, recipes
from daceopt.runtime.executable import Executable
from daceopt.torch_internals import autograd_engine
from daceopt.torch_internals.process_groups import broadcast_together
from daceopt.training.step_exchange import Tuner

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_BROADCAST_BYTES = 250 << 20  # as DistributedDataParallel has it
MARK = "exchange: "  # how messages of daceopt/process_group.h begin


class Exchange:
    """The gradients of ``model`` over ``group``, as ``strategy`` says. Programs call the group by its name.

    ``tuner``: what gives it the fastest strategy as measured, with the first program; None where the strategy stays.
    """

    tuner: Tuner | None = None

    def __init__(self, model: nn.Module, watch: Watch, strategy: Strategy) -> None:
        self.model, self.watch = model, watch
        self.group = group = watch.group
        self.name, self.rank, self.world = str(group.group_name), group.rank(), group.size()
        self.use(strategy)
        if not _NAME.fullmatch(self.name):
            raise Unsupported(f"the process group is called {self.name!r}; expected letters, digits and any of _ . : -")
        self.broadcasts_buffers = True
        self.device = next(model.parameters()).device
        # of the numbers that ranks tell each other: nccl moves those of a device only
        self.told_on = self.device if dist.get_backend(group) == dist.Backend.NCCL else torch.device("cpu")
        self.refusal = self._refusal()  # why no program can exchange now
        self.has_own = False  # whether .grad may hold what was accumulated without an exchange
        self.synced_before = True  # whether gradients were exchanged behind the forward before
        self._published: set[int] = set()
        self.is_traced = False  # whether whoever traces the model exchanges what it computes

    def use(self, strategy: Strategy, graph: str = "") -> None:
        """Exchange as ``strategy`` says from now on; ``graph``: the only one whose operators it groups, where it was
        found for that."""
        self.strategy, self._grouped = strategy, graph
        in_shards = (b.parameters for b in strategy.buckets if b.sharded and self.world > 1)
        self._asked = frozenset(n for names in in_shards for n in names)

    def _refusal(self) -> str:
        if self.world == 1 or self.device.type == "cpu":
            return ""
        return f"the model is on {self.device.type}: its gradients are exchanged behind the backward pass"

    def tell(self, number: int) -> list[int]:
        """The numbers that all ranks tell in this place, this one ``number``."""
        every = [torch.empty(1, dtype=torch.int64, device=self.told_on) for _ in range(self.world)]
        dist.all_gather(every, torch.tensor([number], device=self.told_on), group=self.group)
        return [int(t) for t in every]

    def reduction(self, arguments: Mapping[int, object]) -> Reduction | None:
        """Which of ``arguments``, by position, are parameters whose gradients are averaged; None for none, and for a
        group of one rank."""
        if self.world == 1:
            return None
        named = {id(p): (k, name) for k, (name, p) in enumerate(self.model.named_parameters()) if p.requires_grad}
        names_at = {position: named[id(a)] for position, a in arguments.items() if id(a) in named}
        names = {k: name for k, (_, name) in sorted(names_at.items(), key=lambda item: item[1])}
        return Reduction(self.name, self.world, names) if names else None

    def sharded_parameters(self) -> Mapping[str, torch.Tensor]:
        """The parameters that a training step updates in shards, by name; none in a group of one rank."""
        if not self._asked:  # each step comes here
            return {}
        return {n: p for n, p in self.model.named_parameters() if n in self._asked and p.requires_grad}

    def agree(self, names: Sequence[str], what: str) -> None:
        """All ranks tell that they are about to gather ``names`` of ``what``, in the place where programs tell their
        sequences. Raises WorkerError, on all ranks, where one does something else."""
        with self.watch.inside():
            answer = self.tell(listed_number(what, names))
        others = [r for r, number in enumerate(answer) if number != answer[self.rank]]
        if others:
            raise WorkerError(f"rank {others[0]} does not gather {what} of the same parameters as rank {self.rank}")

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """The tensors of rank 1 of all ranks, one after another."""
        every = [torch.empty_like(own) for _ in range(self.world)]
        with torch.no_grad(), self.watch.inside():
            dist.all_gather(every, own, group=self.group)
        return torch.cat(every)

    def base(self, recipe: str | Recipe) -> Recipe:
        """``recipe``; ``disco`` for a choice among recipes."""
        chosen = recipes.get(recipe) if isinstance(recipe, str) else recipe
        return recipes.get("disco") if isinstance(chosen, Choice) else chosen

    def recipe(self, recipe: str | Recipe) -> Recipe:
        """``recipe`` with the steps that enact the buckets of the strategy."""
        base = self.base(recipe)
        names = {str(step).partition("{")[0] for step in base.steps}
        for step in ("tensor-fusion", "collective-placement"):
            base = base if step in names else base + step
        buckets = tuple(bucket.parameters for bucket in self.strategy.buckets)
        placed: Recipe = base.with_options("collective-placement", wait=self.strategy.wait)
        return placed.with_options("tensor-fusion", buckets=buckets)

    def module_recipe(self, recipe: str | Recipe, graph: str = "") -> Recipe:
        """The same for the model's own graph, with the groups of operators that the strategy has for that."""
        return self._group(recipe, graph, of_step=False)

    def step_recipe(self, recipe: str | Recipe, graph: str = "") -> Recipe:
        """The same for the graph of a training step."""
        return self._group(recipe, graph, of_step=True)

    def _group(self, recipe: str | Recipe, graph: str, of_step: bool) -> Recipe:
        if self._grouped and graph != self._grouped:
            return self.recipe(recipe)
        if self.strategy.groups and self.strategy.of_step is not of_step:
            graphs = ("a training step", "the model alone")[:: 1 if of_step else -1]
            message = f"the strategy groups operators of {graphs[1]}; {graphs[0]} takes its buckets only: search that"
            warnings.warn(message, FallbackWarning, stacklevel=2)
            return self.recipe(recipe)
        return self.recipe(enacting(self.strategy, self.base(recipe)))

    def buckets(self, names: Collection[str]) -> list[Exchanged]:
        """What is reduced where just these parameters have a gradient; those without elements are in no bucket."""
        weights = {w.name: w for w in self.strategy.identity.weights if w.name in names and 0 not in w.shape}
        groups = [[n for n in b.parameters if n in weights] for b in self.strategy.buckets]
        return [(own, sum(prod(weights[n].shape) for n in own), weights[own[0]].dtype) for own in groups if own]

    def publish(self, number: int, buckets: Sequence[Exchanged]) -> None:
        """Let ranks that have ended (join) know what they hear of as ``number``."""
        if self.world > 1 and number not in self._published:
            self._published.add(number)
            self.watch.publish(number, json.dumps(buckets))

    def watch_pair(self, pair: Any) -> Any:
        """``pair``, whose programs name the rank at fault where an exchange fails."""
        for buckets in pair.report["exchanges"]:
            self.publish(sequence_number(buckets, self.world), buckets)
        pair.forward = _Watched(pair.forward, self.watch)
        pair.backward = None if pair.backward is None else _Watched(pair.backward, self.watch)
        return pair

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Within the block the programs of a training step exchange gradients. Raises Unsupported where they cannot."""
        if self.refusal:
            raise Unsupported(self.refusal)
        self.broadcast_buffers()
        self.is_traced = self.has_own = True
        try:
            yield
        finally:
            self.is_traced = self.has_own = False  # where it failed, whoever runs the step in parts exchanges

    def broadcast_buffers(self, source: int = 0) -> None:
        """All ranks take the buffers of rank ``source`` of the group."""
        buffers = [b.detach() for b in self.model.buffers()] if self.broadcasts_buffers and self.world > 1 else []
        if buffers:
            with torch.no_grad(), autograd_engine.unversioned_writes(tuple(buffers)), self.watch.inside():
                broadcast_together(self.group, buffers, _BROADCAST_BYTES, source)

    def broadcast_all(self, source: int = 0) -> None:
        """All ranks take parameters and buffers of rank ``source`` of the group."""
        tensors = [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]
        if tensors and self.world > 1:
            with torch.no_grad(), self.watch.inside():
                broadcast_together(self.group, tensors, _BROADCAST_BYTES, source)


class _Watched:
    """An executable whose failed exchanges name the rank at fault."""

    def __init__(self, executable: Executable, watch: Watch) -> None:
        self._executable, self._watch = executable, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def run(self, *arguments: Any) -> None:
        """As the executable's. Raises WorkerError where an exchange fails."""
        try:
            with self._watch.count():
                self._executable.run(*arguments)
        except (RunError, ArgumentsChanged) as error:
            if MARK not in str(error):
                raise
            raise self._watch.error(str(error).partition(MARK)[2]) from error
