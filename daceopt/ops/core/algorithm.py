"""Library nodes for what is no loop nest: sorting, searching, scanning. The code is a C++ template of our own.

A lowering calls :func:`call`; the template is in ``libs/include/daceopt/algorithms/<name>.h``; the same algorithm
in NumPy, for the interpreter, is registered with :func:`reference`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dace.library
import numpy as np
import sympy
from dace.properties import ListProperty, Property

from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.buffers import Memory
from daceopt.ir.interpreter.interpret import interprets
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import DenseNode, Expressions
from daceopt.ir.scalar.dims import Dim

Reference = Callable[[Sequence[Any], Sequence[Any], Sequence[int]], None]
_REFERENCES: dict[str, Reference] = {}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dace.library.node
class Algorithm(DenseNode):
    """One call of ``daceopt::<function>(In0, ..., Out0, ..., const int64_t* parameters)`` over contiguous arrays.

    Connectors are ``In0, In1, ...`` and ``Out0, ...`` by position; an absent operand is passed as a null pointer of the
    first input's type.
    """

    wants_rows = True
    function = Property(dtype=str, default="", desc="The template's name, and its header's")
    parameters = Expressions(desc="What the template gets as int64_t: extents, counts, switches")
    arity = ListProperty(element_type=int, default=[0, 0], desc="Number of inputs and outputs, absent ones included")
    updating = Property(dtype=bool, default=False, desc="Out0 is In0 but for some elements, and may be in its memory")
    sure = Property(dtype=bool, default=False, desc="Another node of the graph reports wrong numbers")

    @property
    def in_place(self) -> Mapping[str, str]:
        """Out0 in the memory of In0, for what is updated."""
        return {"Out0": "In0"} if self.updating else {}

    def _check_connectors(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        bad = [c for c in (*inputs, *outputs) if not re.fullmatch(r"(In|Out)\d+", c)]
        if bad:
            raise DaceoptError(f"connectors {bad}: expected In0, In1, ... and Out0, Out1, ...")

    def operands_in_order(self, graph: Graph) -> tuple[list[str | None], list[str | None]]:
        """Arrays read and written, by position; None where absent."""
        reads, writes = graph.reads(self), graph.writes(self)
        inputs, outputs = self.arity
        return [reads.get(f"In{k}") for k in range(inputs)], [writes.get(f"Out{k}") for k in range(outputs)]

    def flops(self, graph: Graph) -> sympy.Expr:
        """One for each element read: these algorithms are bound by memory or by branches."""
        return sympy.Add(*(graph.size(n) for n in graph.reads(self).values()))


def call(
    b: Builder,
    function: str,
    inputs: Sequence[str | None],
    outputs: Sequence[str | None],
    parameters: Sequence[Dim] = (),
    bits: bool = False,
    updating: bool = False,
    sure: bool = False,
) -> None:
    """Add an :class:`Algorithm` node; inputs become contiguous, outputs are contiguous arrays that nothing wrote yet.

    ``parameters``: ints or expressions over size symbols. ``bits``: the template looks at the elements' bits, so narrow
    ones are not widened for it. ``updating``: the first output is the first input but for some elements, and the
    template writes those alone where both are in the same memory; ``sure``: it reports no error.
    """
    if not _NAME.fullmatch(function) or function not in _REFERENCES:
        raise DaceoptError(f"algorithm {function!r}: expected one of {sorted(_REFERENCES)}")
    reads = {f"In{k}": b.contiguous(n) for k, n in enumerate(inputs) if n is not None}
    writes = {f"Out{k}": n for k, n in enumerate(outputs) if n is not None}
    node = Algorithm(
        b.label,
        inputs=list(reads),
        outputs=list(writes),
        function=function,
        parameters=list(parameters),
        arity=[len(inputs), len(outputs)],
        updating=updating,
        sure=sure,
    )
    if bits:
        b.graph.add_node(node, reads, writes)
    else:
        b.attach(node, reads, writes)


def reference(function: str) -> Callable[[Reference], Reference]:
    """Register an algorithm in NumPy: ``function(inputs, outputs, parameters)`` fills the output arrays in place."""

    def register(rule: Reference) -> Reference:
        _REFERENCES[function] = rule
        return rule

    return register


@interprets("Algorithm")
def _interpret(memory: Memory, node: Algorithm) -> None:
    names_in, names_out = node.operands_in_order(memory.graph)
    inputs = [None if n is None else np.array(memory.array(n), order="C") for n in names_in]
    outputs = [None if n is None else np.zeros(memory.array(n).shape, memory.array(n).dtype) for n in names_out]
    _REFERENCES[node.function](inputs, outputs, [memory.number(p) for p in node.parameters])
    for name, value in zip(names_out, outputs):
        if name is not None and value is not None:
            memory.store(name, value)


def extents_around(shape: Sequence[Dim], axis: int) -> tuple[Dim, Dim, Dim]:
    """(elements before, at and after ``axis``): how algorithms along one axis see an array."""
    return sympy.Mul(*shape[:axis]), shape[axis], sympy.Mul(*shape[axis + 1 :])


def around(array: np.ndarray, parameters: Mapping[str, int] | Sequence[int]) -> np.ndarray:
    """``array`` as the three-dimensional view that :func:`extents_around` describes, from parameters 0 to 2."""
    outer, extent, inner = (parameters[k] for k in range(3))  # type: ignore[index]
    return array.reshape(outer, extent, inner)
