"""The ranks of a group as those that search for the fastest way together: all time each way, the slowest counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from daceopt.cost import measure
from daceopt.distributed.runtime.faults import Watch
from daceopt.errors import DaceoptError
from daceopt.programs.tuning.search import ROUNDS, SECONDS, Searchers, T


class RankSearchers(Searchers):
    """All ranks of the group of ``watch``: rank 0 decides. Raises WorkerError where one is not there."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._group, self._world = watch, watch.group, watch.group.size()

    def agree(self, value: T) -> T:
        box = [value]
        with self._watch.inside():
            dist.broadcast_object_list(box, dist.get_global_rank(self._group, 0), self._group)
        return box[0]

    def attempt(self, make: Callable[[], T]) -> T:
        errors: list[DaceoptError] = []
        results: list[T] = []
        try:
            results.append(make())
        except DaceoptError as error:
            errors.append(error)
        texts = self.all(str(errors[0]) if errors else "")
        if errors:
            raise errors[0]
        for rank, text in enumerate(texts):
            if text:
                raise DaceoptError(f"on rank {rank}: {text}")
        return results[0]

    def sample(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        together = {name: self._behind_barrier(call) for name, call in calls.items()}
        first = self._slowest(measure.sample(together, seconds=0, warmup=1, at_least=1))
        each = sum(own[0] for own in first.values()) / len(first)
        rounds = max(ROUNDS, math.ceil(SECONDS / max(each, 1e-9)))  # the same on all ranks: no clock ends them
        return self._slowest(measure.sample(together, seconds=0, warmup=0, at_least=rounds))

    def all(self, value: object) -> list[Any]:
        """What each rank says in this place."""
        everyone: list[Any] = [None] * self._world
        with self._watch.inside():
            dist.all_gather_object(everyone, value, group=self._group)
        return everyone

    def _behind_barrier(self, call: Callable[[], object]) -> Callable[[], measure.Elapsed]:
        """``call``, begun on all ranks at once; who comes late is not waited for under the clock."""

        def run() -> measure.Elapsed:
            with self._watch.inside():
                dist.barrier(self._group)
            start = time.perf_counter()
            call()
            return measure.Elapsed(time.perf_counter() - start)

        return run

    def _slowest(self, samples: dict[str, list[float]]) -> dict[str, list[float]]:
        names = sorted(samples)
        seconds = torch.tensor([samples[name] for name in names], dtype=torch.float64)
        with self._watch.inside():
            dist.all_reduce(seconds, dist.ReduceOp.MAX, self._group)
        return dict(zip(names, seconds.tolist()))
