"""Positions that no iteration of a vector loop changes, as values before the loop.

What ends at the border of an array (``maximum(0, 2*i0 - 1)``) becomes a choice inside of an index, of which gcc makes a
gather where it finds it in the loop that it vectorises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import sympy

from daceopt.codegen.c_tree import Declare, Statement
from daceopt.codegen.names import Names
from daceopt.ir.access.references import Reference, StatementInstance
from daceopt.ir.schedule import schedule
from daceopt.ir.schedule.schedule import Accumulate, Do, Loop, Sequence, Tree


class Hoisted:
    """``bodies``: the statements with symbols in the place of such positions; ``statements(loop)`` define them.

    ``inner``: id of a first statement -> the vector loop directly around it, or around the unrolled loop around it,
    which ``unrolled`` has then.
    """

    def __init__(self, names: Names, tree: Tree, bodies: Mapping[int, StatementInstance]):
        self._names, self._count = names, 0
        self._before: dict[int, dict[Any, Any]] = {}  # key of a loop -> position -> its symbol
        self.bodies = dict(bodies)
        self.inner: dict[int, Loop] = {}
        self.unrolled: dict[int, Loop] = {}
        for loop in (n for n in schedule.loops(tree) if n.kind.endswith("vector")):
            unrolled = _unrolled_loop(loop.body)
            if unrolled is not None:
                self.unrolled[_key(loop)] = unrolled
            if unrolled is not None or _is_run(loop.body):
                self.inner[_key(loop)] = loop
            for do in schedule.dos(loop):
                body = self.bodies[do.statement]
                reads = {c: self._outside(loop, r) for c, r in body.reads.items()}
                self.bodies[do.statement] = replace(body, reads=reads)

    def statements(self, loop: Loop) -> list[Statement]:
        """What is before ``loop``."""
        positions, names = self._before.get(_key(loop), {}), self._names
        return [Declare("int64_t", names.loop(s), names.size_text(e), const=True) for e, s in positions.items()]

    def run_of(self, loop: Loop) -> int | None:
        """The key of ``inner`` for which it is ``loop``."""
        return _key(loop) if _key(loop) in self.inner else None

    def _outside(self, loop: Loop, reference: Reference) -> Reference:
        rest = reference.rest
        if not isinstance(rest, sympy.Expr) or not rest.has(sympy.Max, sympy.Min) or loop.param in rest.free_symbols:
            return reference
        positions = self._before.setdefault(_key(loop), {})
        if rest not in positions:
            positions[rest] = sympy.Dummy(f"position{self._count}", integer=True)
            self._count += 1
            self._names.loop(positions[rest])
        return replace(reference, rest=positions[rest])


def _is_run(tree: Tree) -> bool:
    return isinstance(tree, Do) or (isinstance(tree, Sequence) and all(isinstance(c, Do) for c in tree.children))


def _unrolled_loop(tree: Tree) -> Loop | None:
    """The unrolled loop that is one iteration, and collects in it at most."""
    while isinstance(tree, Accumulate):
        tree = tree.body
    if not isinstance(tree, Loop) or tree.kind != "unroll" or not isinstance(tree.extent, int) or tree.rest is not None:
        return None
    return tree if _is_run(tree.body) else None


def _key(loop: Loop) -> int:
    """What tells a vector loop from others, also where the loops around it were put together anew."""
    return id(next(node for node, _ in schedule.walk(loop) if isinstance(node, Do)))
