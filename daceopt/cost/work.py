"""How much a graph's nodes compute, and the least time that bytes and flops allow them on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from daceopt.cost.machine import Machine, this_machine
from daceopt.cost.movement import data_movement
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.control.region import Region, iterations
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.dims import Dim
from daceopt.ir.scalar.types import is_float

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.kernel.tasklet import Assignment

# Operations that one evaluation takes, about: the additions and multiplications of the vectorised polynomials that
# compute them. Whatever is not listed (comparison, select, minimum, rounding, conversion) is one operation.
WEIGHTS: dict[str, int] = {
    "division": 4,
    "sqrt": 4,
    "exp": 12,
    "exp_rounded": 9,
    "exp_weight": 11,
    "expm1": 14,
    "log": 14,
    "log1p": 16,
    "sin": 14,
    "cos": 14,
    "tan": 20,
    "sinh": 20,
    "cosh": 20,
    "tanh": 20,
    "asin": 20,
    "acos": 20,
    "atan": 20,
    "asinh": 24,
    "acosh": 24,
    "atanh": 24,
    "erf": 20,
    "power": 28,
    "sigmoid": 18,
    "softplus": 30,
    "fmod": 8,
    "pymod": 8,
    "idiv": 8,
    "uniform": 60,
    "load": 0,
    "infinity": 0,
    "nan": 0,
}


@dataclass(frozen=True)
class NodeCost:
    """What one node must do: bytes read and written, operations, and the least seconds that the machine allows."""

    node: Node
    label: str
    read: int
    written: int
    flops: int
    seconds: float

    @property
    def bytes(self) -> int:
        return self.read + self.written


def roofline(
    graph: Graph, sizes: Mapping[str, int] | None = None, machine: Machine | None = None, *, operators: bool = False
) -> list[NodeCost]:
    """The cost of every node in the order in which they run, for the given values of the size symbols.

    ``machine``: this one by default. ``operators``: count those that are not lowered yet by their bytes alone. Raises
    DaceoptError when a size is missing, Unsupported for other operators.
    """
    machine, work = machine or this_machine(), known_flops if operators else flops
    moved = data_movement(graph).nodes
    return [_cost(graph, node, (*moved[node], work(graph, node)), sizes or {}, machine) for node in graph.nodes()]


def _cost(
    graph: Graph, node: Node, costs: tuple[Dim, Dim, Dim], sizes: Mapping[str, int], machine: Machine
) -> NodeCost:
    reads, writes, work = (resolve(value, sizes) for value in costs)
    seconds = machine.seconds(reads + writes, work, itemsize(graph, node))
    return NodeCost(node, str(getattr(node, "label", node)), reads, writes, work, seconds)


def itemsize(graph: Graph, node: Node) -> int:
    """Bytes of the elements on which a node computes: of what it writes, or of the narrowest factor of a product."""
    names = [n for n in graph.outputs_of(node) if n is not None]
    own = max((graph.dtype(n).bytes for n in names), default=4)
    factors = [graph.dtype(n).bytes for n in graph.inputs_of(node) if n is not None and is_float(graph.dtype(n))]
    return min([own, *factors]) if hasattr(node, "flops") else own


def resolve(value: Dim, sizes: Mapping[str, int]) -> int:
    """An expression over size symbols as a number. Raises DaceoptError when ``sizes`` lacks one of them."""
    value = sympy.sympify(value)
    missing = sorted({str(s) for s in value.free_symbols} - set(sizes))
    if missing:
        raise DaceoptError(f"the sizes {', '.join(missing)} are needed; given are {dict(sizes)}")
    return int(value.subs({s: sizes[str(s)] for s in value.free_symbols}))


def flops(graph: Graph, node: Node) -> Dim:
    """Operations of one execution of ``node``, an expression over the sizes. Raises Unsupported for operators."""
    if isinstance(node, KernelNode):
        return kernel_flops(node.kernel)
    if isinstance(node, Region):
        inside = (sympy.Add(*(flops(body, n) for n in body.nodes())) for body in node.bodies)
        return iterations(node) * sympy.Max(*inside)
    if hasattr(node, "op_type") or not hasattr(node, "flops"):
        raise Unsupported(f"the work of {node} is unknown: expected a kernel or a library node; lower operators first")
    return node.flops(graph)


def known_flops(graph: Graph, node: Node) -> Dim:
    """The same; 0 of operators and calls of the host, of which nobody knows."""
    try:
        return flops(graph, node)
    except Unsupported:
        return 0


def kernel_flops(kernel: Kernel) -> Dim:
    """Operations of all iterations of a kernel; a reduction adds one per element that it takes in."""
    return sympy.Add(*(_stage_flops(kernel, stage) for stage in kernel.stages))


def _stage_flops(kernel: Kernel, stage: Stage) -> Dim:
    combined = sum(1 for access in stage.writes.values() if access.wcr)
    return (operations(stage.assignments) + combined) * kernel.most(stage.params)


def operations(assignments: Iterable[Assignment]) -> int:
    """Operations of one execution; an expression that occurs several times is computed once, as the printer does."""
    counted: set[sympy.Expr] = set()
    return sum(_operations(a.expr, counted) for a in assignments)


def _operations(expr: sympy.Expr, counted: set[sympy.Expr]) -> int:
    if not expr.args or expr.is_number or expr in counted:
        return 0
    counted.add(expr)
    return own_operations(expr) + sum(_operations(a, counted) for a in expr.args)


def own_operations(expr: sympy.Expr) -> int:
    """Operations of the outermost function alone."""
    if expr.is_Add:
        return len(expr.args) - 1
    if expr.is_Mul:
        return _product(expr)
    if expr.is_Pow:
        return _power(expr.exp)
    return WEIGHTS.get(type(expr).__name__, 1)


def _product(expr: sympy.Expr) -> int:
    """A sign costs nothing (it becomes a subtraction), a divisor takes the place of a multiplication."""
    factors = [f for f in expr.args if f != -1]
    divided = sum(1 for f in factors if f.is_Pow and f.exp.is_negative)
    return max(0, len(factors) - 1 - divided)


def _power(exponent: sympy.Expr) -> int:
    if not exponent.is_number:
        return WEIGHTS["power"]
    cost, size = WEIGHTS["division"] if exponent.is_negative else 0, abs(exponent)
    if not (2 * size).is_Integer or size > 64:
        return cost + WEIGHTS["power"]
    whole, half = divmod(int(2 * size), 2)
    squarings = whole.bit_length() - 1 + whole.bit_count() - 1 if whole else 0
    return cost + squarings + (WEIGHTS["sqrt"] + (1 if whole else 0) if half else 0)
