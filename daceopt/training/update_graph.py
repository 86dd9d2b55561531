"""The update of a training step as nodes behind its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import sympy

from daceopt.ir.control.imported import Reduction
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar, types
from daceopt.training.update_plan import COLUMNS, Updated, UpdatePlan
from daceopt.training.update_rules import SCALAR_RULES
from daceopt.transformations.distributed._averaging import add_sum, average_gradient
from daceopt.transformations.distributed._sharding import gather, own_shard, scatter

_SUMMANDS = 16  # of one kernel that adds single numbers
_TINY = 1e-6  # beside a norm that divides, as in torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class GraphUpdate:
    """``plan`` as an ``ir.control.imported.Update``."""

    plan: UpdatePlan
    reduction: Reduction | None = None  # which gradients, by argument, are averaged over ranks before they update

    @property
    def seed(self) -> float:
        return self.plan.seed

    def extend(self, graph: Graph, parameters: Sequence[str], gradients: Sequence[str | None]) -> None:
        """Inputs and outputs are added in the order that ``UpdatePlan`` says."""
        with graph.label_nodes("update"):
            _Extension(graph, self.plan, parameters, self.reduction).run(gradients)


class _Extension:
    def __init__(self, graph: Graph, plan: UpdatePlan, parameters: Sequence[str], reduction: Reduction | None):
        self._graph, self._plan, self._b = graph, plan, Builder(graph, "update")
        self._reduction = reduction
        self._members = list(zip(plan.parameters, parameters, strict=True))
        self._states: list[list[str]] = []
        self._collected: list[str | None] = []
        for parameter, name in self._members:
            shape = (parameter.shard,) if parameter.shard else None
            self._states.append([self._like(name, state, shape) for state in plan.states(parameter)])
            self._collected.append(self._like(name, "collected") if parameter.accumulated else None)
        self._coefficients = {d: self._table(d) for d in plan.dtypes}

    def _like(self, name: str, hint: str, shape: tuple[int, ...] | None = None) -> str:
        return self._graph.add_input(hint, shape or self._graph.shape(name), self._graph.dtype(name))

    def _table(self, dtype: str) -> str:
        return self._graph.add_input("coefficients", (self._plan.rows, COLUMNS), types.from_name(dtype))

    def run(self, gradients: Sequence[str | None]) -> None:
        """Add nodes and outputs."""
        whole = [self._whole(k, g) for k, g in enumerate(gradients)]
        scale = self._norm_scale(whole) if self._plan.updates and self._plan.clip == "norm" else None
        for k, gradient in enumerate(whole):
            names = self._update(k, gradient, scale) if self._plan.updates else [self._alone(gradient)]
            collected = self._collected[k]
            old = [self._members[k][1], *self._states[k]] if self._plan.updates else [collected] if collected else []
            self._graph.replaced |= dict(enumerate(old, len(self._graph.outputs)))
            for name in names:
                self._graph.add_output(name)

    def _whole(self, k: int, gradient: str | None) -> str:
        """The gradient with what was collected before, over all ranks; this rank's shard of it, where it has one."""
        (parameter, name), collected, b = self._members[k], self._collected[k], self._b
        gradient = None if parameter.waiting else gradient
        g = gradient or b.full(self._graph.shape(name), 0, self._graph.dtype(name))
        if collected is not None:
            g = str(b.elementwise(lambda x, y: x + y, collected, g, dtype=self._graph.dtype(name)))
        origin = None if self._reduction is None else self._reduction.parameters.get(parameter.argument)
        if origin is None or self._reduction is None:
            return g
        return (scatter if parameter.shard else average_gradient)(self._graph, g, origin, self._reduction)

    def _alone(self, name: str) -> str:
        """``name``, or a copy of it where it cannot be an output."""
        graph = self._graph
        needs_copy = name in graph.outputs or graph.is_given(name)
        return self._b.copy(name) if needs_copy or graph.is_view(name) or graph.is_part(name) else name

    # ---------------------------------------------------------------- clipping

    def _norm_scale(self, gradients: Sequence[str]) -> str:
        """What shortens all gradients together to the given norm; 1 where they are shorter. As PyTorch collects the
        sum: squares of float32 are too large for it long before the gradients are."""
        b, wide = self._b, types.from_name("float64")
        axes = (range(len(self._graph.shape(g))) for g in gradients)
        squares = [
            b.reduce("sum", lambda x: scalar.cast(x, wide) ** 2, g, axes=a, dtype=wide) for g, a in zip(gradients, axes)
        ]
        total = self._over_ranks(squares)
        bound = self._coefficient(0, COLUMNS - 1, "float64")
        one = sympy.Integer(1)
        return str(b.elementwise(lambda t, m: scalar.minimum(m / (sympy.sqrt(t) + _TINY), one), total, bound))

    def _over_ranks(self, squares: Sequence[str]) -> str:
        """The sum of all, of which those of shards are added up over ranks."""
        parts, whole = ([s for s, (p, _) in zip(squares, self._members) if bool(p.shard) is k] for k in (True, False))
        if parts and self._reduction is not None:
            own = self._b.copy(self._b.reshape(self._sum(parts), (1,)))
            whole.append(self._b.reshape(add_sum(self._graph, own, self._reduction), ()))
        return self._sum(whole)

    def _sum(self, names: list[str]) -> str:
        while len(names) > 1:
            groups = [names[k : k + _SUMMANDS] for k in range(0, len(names), _SUMMANDS)]
            names = [str(self._b.elementwise(lambda *x: sympy.Add(*x), *group)) for group in groups]
        return names[0]

    # ---------------------------------------------------------------- one parameter

    def _update(self, k: int, gradient: str, scale: str | None) -> list[str]:
        """New values of the parameter and its states, and the gradient where it is kept."""
        (parameter, name), states = self._members[k], self._states[k]
        rule = partial(_values, self._plan, parameter)
        used = _columns(rule, len(states))
        numbers = [self._coefficient(parameter.row, c, parameter.dtype) for c in used]
        dtype = self._graph.dtype(name)
        if scale is not None:  # a value of its own: in a rule it would be squared apart from the gradient
            one = types.compute_type(dtype)
            gradient = self._b.elementwise(lambda g, s: g * scalar.cast(s, one), gradient, scale, dtype=one)

        def values(g: sympy.Expr, w: sympy.Expr, *rest: sympy.Expr) -> tuple[sympy.Expr, ...]:
            return rule(g, w, rest[: len(states)], dict(zip(used, rest[len(states) :])))

        dtypes = [dtype] * (1 + len(states) + self._plan.keeps)
        reduction = self._reduction
        if not parameter.shard or reduction is None:
            return list(self._b.elementwise(values, gradient, name, *states, *numbers, dtype=dtypes))
        own = own_shard(self._graph, name, reduction)
        new, *rest = self._b.elementwise(values, gradient, own, *states, *numbers, dtype=dtypes)
        shape, origin = self._graph.shape(name), reduction.parameters[parameter.argument]
        return [gather(self._graph, new, shape, origin, reduction), *rest]

    def _coefficient(self, row: int, column: int, dtype: str) -> str:
        """One number of the table: a view of it."""
        return self._graph.add_view(self._coefficients[dtype], "coefficient", (), (), row * COLUMNS + column)


def _values(
    plan: UpdatePlan,
    parameter: Updated,
    g: sympy.Expr,
    w: sympy.Expr,
    states: Sequence[sympy.Expr],
    c: Mapping[int, sympy.Expr],
) -> tuple[sympy.Expr, ...]:
    """All results for one element; ``c``: coefficient by column."""
    if plan.clip == "value":
        g = scalar.maximum(scalar.minimum(g, c[COLUMNS - 1]), -c[COLUMNS - 1])
    values = SCALAR_RULES[parameter.rule](parameter.flags, g, w, states, c)
    return (*values, g) if plan.keeps else values


def _columns(rule: Callable[..., tuple[sympy.Expr, ...]], states: int) -> list[int]:
    """The coefficients that a rule reads."""
    g, w, *rest = (scalar.symbol(f"x{k}", types.from_name("float64")) for k in range(2 + states + COLUMNS))
    held, numbers = rest[:states], rest[states:]
    read = {s for value in rule(g, w, held, dict(enumerate(numbers))) for s in value.free_symbols}
    return [k for k, number in enumerate(numbers) if number in read]
