"""Collectives in the interpreter, which is one rank: the others are alike, unless somebody says what they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from daceopt.errors import Unsupported
from daceopt.ir.graph.kinds import Node
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interprets
from daceopt.ir.nodes.collective import (
    AgreementStart,
    AgreementWait,
    AllGatherStart,
    AllGatherWait,
    AllReduceStart,
    AllReduceWait,
    IntoShards,
    OwnShard,
    ReduceScatterStart,
    ReduceScatterWait,
    Unshard,
)
from daceopt.scoped import scoped

Exchanged = Callable[[tuple[str, ...], np.ndarray], np.ndarray]
"""Names of the parameters and this rank's value -> what all ranks make of it."""


@dataclass(frozen=True)
class Ranks:
    """``reduce``: the sum of a value over all ranks; ``gather``: the values of all, one after another; both are called
    in the order of starts. ``rank``: the number of this one."""

    reduce: Exchanged
    gather: Exchanged | None = None
    rank: int = 0


_ranks: ContextVar[Ranks | None] = ContextVar("daceopt_simulated_ranks", default=None)


@contextmanager
def reducing(reduce: Exchanged, gather: Exchanged | None = None, rank: int = 0) -> Iterator[None]:
    """Within the block the interpreter is one of these ranks."""
    with scoped(_ranks, Ranks(reduce, gather, rank)):
        yield


def _sum(memory: Memory, node: Node) -> np.ndarray:
    value, ranks = memory.array(memory.graph.reads(node)["X"]), _ranks.get()
    total: np.ndarray = value * node.world if ranks is None else ranks.reduce(tuple(node.parameters), value)
    return total


def _own() -> int:
    ranks = _ranks.get()
    return 0 if ranks is None else ranks.rank


@interprets("AllReduceStart")
def _start(memory: Memory, node: AllReduceStart) -> None:
    """The sum takes the operand's place at once: nothing else reads it."""
    memory.store(memory.graph.reads(node)["X"], _sum(memory, node))
    memory.store(memory.graph.writes(node)["Handle"], np.int64(1))


@interprets("ReduceScatterStart")
def _scatter(memory: Memory, node: ReduceScatterStart) -> None:
    """The sum takes the place of what is received."""
    memory.store(memory.graph.writes(node)["Received"], _sum(memory, node))
    memory.store(memory.graph.writes(node)["Handle"], np.int64(1))


@interprets("ReduceScatterWait")
def _wait_for_scatter(memory: Memory, node: ReduceScatterWait) -> None:
    received = memory.array(memory.graph.reads(node)["Received"])
    memory.store(memory.graph.writes(node)["Y"], received[_own()])


@interprets("AllGatherStart")
def _gather(memory: Memory, node: AllGatherStart) -> None:
    """Raises Unsupported where nobody says what others have: ranks that are alike have other shards."""
    writes, ranks = memory.graph.writes(node), _ranks.get()
    if ranks is None or ranks.gather is None:
        raise Unsupported("an all-gather needs the shards of all ranks; run it within `reducing(reduce, gather, rank)`")
    rows = ranks.gather(tuple(node.parameters), memory.array(memory.graph.reads(node)["X"]))
    memory.store(writes["Gathered"], rows)
    memory.store(writes["Handle"], np.int64(1))


@interprets("AllReduceWait")
@interprets("AllGatherWait")
def _wait(memory: Memory, node: AllReduceWait | AllGatherWait) -> None:
    memory.store(memory.graph.writes(node)["Y"], memory.array(memory.graph.reads(node)["X"]))


@interprets("IntoShards")
def _into_shards(memory: Memory, node: IntoShards) -> None:
    x, y = (memory.array(n) for n in (memory.graph.reads(node)["X"], memory.graph.writes(node)["Y"]))
    y[...] = np.pad(x.reshape(-1), (0, y.size - x.size)).reshape(y.shape)


@interprets("OwnShard")
def _own_shard(memory: Memory, node: OwnShard) -> None:
    x, y = (memory.array(n) for n in (memory.graph.reads(node)["X"], memory.graph.writes(node)["Y"]))
    run = x.reshape(-1)[_own() * y.size :][: y.size]
    y[...] = np.pad(run, (0, y.size - run.size))


@interprets("Unshard")
def _unshard(memory: Memory, node: Unshard) -> None:
    x, y = (memory.array(n) for n in (memory.graph.reads(node)["X"], memory.graph.writes(node)["Y"]))
    y[...] = x.reshape(-1)[: y.size].reshape(y.shape)


@interprets("AgreementStart")
@interprets("AgreementWait")
def _agreement(memory: Memory, node: AgreementStart | AgreementWait) -> None:
    for name in memory.graph.writes(node).values():
        memory.store(name, np.int64(1))
