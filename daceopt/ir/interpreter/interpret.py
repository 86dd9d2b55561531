"""Executes a graph with NumPy, in its own types or all in float64: the reference of ``verify="numerics"``.

Every access is checked against its buffer, so an index out of range is an error here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dace
import numpy as np
import sympy
from dace.sdfg.nodes import LibraryNode

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.kinds import Node
from daceopt.ir.interpreter import interpret_schedule
from daceopt.ir.interpreter.buffers import Memory, poison, window
from daceopt.ir.interpreter.disturbance import Disturbance
from daceopt.ir.interpreter.interpret_pieces import Iterations, bounds_of
from daceopt.ir.interpreter.reduction import UFUNC, identity
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.extents import in_scalar_code
from daceopt.ir.schedule.schedule import accumulator_type

NodeFunction = Callable[["Memory", LibraryNode], None]
NODES: dict[str, NodeFunction] = {}  # library node class name -> implementation


def interprets(class_name: str) -> Callable[[NodeFunction], NodeFunction]:
    """Register how a library node (or a subclass of it) is executed: ``function(memory, node)``."""

    def register(function: NodeFunction) -> NodeFunction:
        NODES[class_name] = function
        return function

    return register


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any],
    dtype: type | None = None,
    sizes: Mapping[str, int] | None = None,
    disturbance: Disturbance | None = None,
) -> dict[str, np.ndarray]:
    """Run ``graph`` on arrays by input name; returns its outputs, and what it saves for a backward graph, by name.

    ``dtype=numpy.float64`` keeps every float in double precision. ``sizes``: symbols of a region's body that come from
    outside. ``disturbance``: other roundings of what is computed.

    Raises ValueError for a missing or misshapen input or an access out of range, IndexError for a run-time
    index out of range, Unsupported for a node that has no reference implementation.
    """
    memory = Memory(graph, inputs, dtype is not None, sizes, disturbance)
    for node in graph.nodes():
        run_node(memory, node)
    return {name: memory.array(name).copy() for name in (*graph.outputs, *graph.saved)}


def run_node(memory: Memory, node: Node) -> None:
    """Execute one node on the buffers of ``memory``."""
    if isinstance(node, KernelNode):
        _kernel(memory, node.kernel)
        return
    function = next((NODES[c.__name__] for c in type(node).__mro__ if c.__name__ in NODES), None)
    if function is None:
        raise Unsupported(f"{type(node).__name__} has no reference implementation; known are {sorted(NODES)}")
    function(memory, node)


def _kernel(memory: Memory, kernel: Kernel) -> None:
    if interpret_schedule.can_run(memory, kernel):
        interpret_schedule.run(memory, kernel)
    else:
        _Execution(memory, kernel).run()


class _Execution:
    """One kernel, each stage as whole-array operations over its iterations, or over as many as memory should hold."""

    def __init__(self, memory: Memory, kernel: Kernel):
        self.memory, self.kernel = memory, kernel
        self.extents = {p.name: memory.number(e) for p, e in kernel.extents.items()}
        self.outer = kernel.outer
        self.locals: dict[str, np.ndarray] = {}
        lead = [self.extents[p.name] for p in self.outer]
        for name, (dtype, shape) in kernel.locals.items():
            own = [memory.number(e) for e in shape or (1,)]
            self.locals[name] = poison((*lead, *own), memory.numpy_dtype(dtype))

    def run(self) -> None:
        for stage in self.kernel.stages:
            self._stage(stage)

    def _stage(self, stage: Stage) -> None:
        params = tuple(p.name for p in dict.fromkeys([*(self.outer if self.kernel.locals else []), *stage.params]))
        whole = Iterations(params, (0,) * len(params), tuple(self.extents[p] for p in params))
        if 0 in whole.extents and not any(a.wcr for a in stage.writes.values()):
            return
        totals: dict[str, np.ndarray] = {}
        for piece in whole.pieces(lambda: bounds_of(stage, self.memory.number)):
            values = {c: self._read(a, piece) for c, a in stage.reads.items()} | piece.values()
            self.memory.compute(stage.assignments, values)
            with np.errstate(all="ignore"):  # stores into narrow types convert
                for connector, access in stage.writes.items():
                    value = np.broadcast_to(values[connector], piece.extents)
                    if access.wcr is None:
                        self._window(access, piece)[...] = value
                    else:
                        self._collect(totals, connector, access, value, piece, whole)
        with np.errstate(all="ignore"):
            for connector, total in totals.items():
                access = stage.writes[connector]
                self._window(access, whole.of(self._kept_axes(access, whole)))[...] = total

    def _kept_axes(self, access: Access, iterations: Iterations) -> list[int]:
        """The axes that choose the element which is written; along the others it is collected."""
        named = {s.name for e in self._place(access)[1] if isinstance(e, sympy.Expr) for s in e.free_symbols}
        return [k for k, p in enumerate(iterations.params) if p in named]

    def _collect(
        self,
        totals: dict[str, np.ndarray],
        connector: str,
        access: Access,
        value: np.ndarray,
        piece: Iterations,
        whole: Iterations,
    ) -> None:
        """Add what a piece contributes to the total of all, which has the type of accumulators: how memory is laid out
        decides in which order NumPy adds."""
        assert access.wcr is not None
        axes = self._kept_axes(access, whole)
        wide = types.to_numpy(accumulator_type(types.from_numpy(value.dtype), access.wcr))
        start, function = identity(access.wcr, wide), UFUNC[access.wcr]
        if connector not in totals:
            totals[connector] = np.full(whole.of(axes).extents, start, wide)
        reduced_axes = tuple(k for k in range(len(whole.params)) if k not in axes)
        part = function.reduce(value, axis=reduced_axes, initial=start, dtype=wide)
        total = totals[connector][piece.of(axes).places()]
        total[...] = function(total, part)

    def _place(self, access: Access) -> tuple[np.ndarray, list[Any], list[int], Any]:
        """(flat buffer, index expressions, strides, offset) of an access."""
        if access.array in self.locals:
            local = self.locals[access.array]
            strides = [s // local.itemsize for s in local.strides]
            return local.reshape(-1), [*self.outer, *access.index], strides, 0
        graph = self.memory.graph
        root, offset = graph.root(access.array)
        strides = [self.memory.number(s) for s in graph.strides(access.array)]
        return self.memory.buffer(root), list(access.index), strides, self.memory.number(offset)

    def _window(self, access: Access, iterations: Iterations) -> np.ndarray:
        """The elements of the iterations; behind those dimensions that are open for ``load``, where there are some."""
        buffer, index, strides, offset = self._place(access)
        what = f"kernel {self.kernel.label}, array {access.array}"
        steps, starts = dict.fromkeys(iterations.params, 0), dict(zip(iterations.params, iterations.starts))
        for expr, stride in zip(index, strides):
            if expr is None:
                continue
            form = affine(expr)
            if not form.is_exact:
                raise Unsupported(f"{what}: index {expr} is not affine in the loops; read it with load()")
            offset += self.memory.number(form.constant) * stride
            for p, factor in form.terms:
                step = self.memory.number(factor) * stride
                steps[p.name] += step
                offset += step * starts[p.name]
        is_open = [k for k, expr in enumerate(index) if expr is None]
        shape = [self.memory.number(self.memory.graph.shape(access.array)[k]) for k in is_open]
        shape, steps_of = [*shape, *iterations.extents], [*(strides[k] for k in is_open), *steps.values()]
        return window(buffer, shape, steps_of, offset, what)

    def _read(self, access: Access, iterations: Iterations) -> np.ndarray:
        if all(e is None for e in access.index):
            return self.memory.array(access.array)
        if None in access.index or all(affine(e).is_exact for e in access.index):
            return self._window(access, iterations)
        return self._gather(access, iterations)

    def _gather(self, access: Access, iterations: Iterations) -> np.ndarray:
        """What is read at places that are no affine functions of the loops, such as the nearest one of an image."""
        buffer, index, strides, offset = self._place(access)
        values = iterations.values()
        places = offset + sum(self._whole(e, values) * s for e, s in zip(index, strides))
        places = np.broadcast_to(places, iterations.extents)
        if places.size and (places.min() < 0 or places.max() >= buffer.size):
            where = f"elements {places.min()} to {places.max()} of a buffer of {buffer.size}"
            raise ValueError(f"kernel {self.kernel.label}, array {access.array}: {where}")
        return np.asarray(buffer[places])

    def _whole(self, expr: sympy.Expr, values: Mapping[str, np.ndarray]) -> Any:
        """An integer expression over sizes and loop parameters."""
        expr = sympy.sympify(expr)
        named = {s: str(s) for s in expr.free_symbols if str(s) in values}
        numbers = {s: self.memory.number(s) for s in expr.free_symbols - set(named)}
        bound = {s: values[n] for s, n in named.items()}
        return scalar.evaluate(in_scalar_code(expr.subs(numbers)), bound, None, dace.int64)
