"""Collectives in the interpreter, which is one rank: the others are alike, unless somebody says what they bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from daceopt.ir.interpret import Memory, interprets
from daceopt.scoped import scoped

Reduce = Callable[[tuple[str, ...], np.ndarray], np.ndarray]
"""Names of the parameters and this rank's summand -> the sum over all ranks."""

_reduce: ContextVar[Reduce | None] = ContextVar("daceopt_simulated_ranks", default=None)


@contextmanager
def reducing(reduce: Reduce) -> Iterator[None]:
    """Within the block the interpreter sums over ranks with ``reduce``, called in the order of starts."""
    with scoped(_reduce, reduce):
        yield


@interprets("AllReduceStart")
def _start(memory: Memory, node: Any) -> None:
    """The sum takes the operand's place at once: nobody else reads it."""
    x, reduce = memory.graph.reads(node)["X"], _reduce.get()
    value = memory.array(x)
    memory.store(x, value * node.world if reduce is None else reduce(tuple(node.parameters), value))
    memory.store(memory.graph.writes(node)["Handle"], np.int64(1))


@interprets("AllReduceWait")
def _wait(memory: Memory, node: Any) -> None:
    memory.store(memory.graph.writes(node)["Y"], memory.array(memory.graph.reads(node)["X"]))


@interprets("AgreementStart")
@interprets("AgreementWait")
def _agreement(memory: Memory, node: Any) -> None:
    for name in memory.graph.writes(node).values():
        memory.store(name, np.int64(1))
