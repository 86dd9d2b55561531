"""Derive the backward graph of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from daceopt.autodiff import Derivative, differentiate
from daceopt.autodiff.late_order import with_prompt
from daceopt.autodiff.storage import POLICIES, Storage
from daceopt.autodiff.storage_choice import BY
from daceopt.autodiff.storage_predicates import NAMED, Predicate
from daceopt.errors import DaceoptError
from daceopt.ir.control.imported import Gradients, Reduction, Update
from daceopt.ir.control.program import Kind, Program, Role
from daceopt.ir.graph.grafting import graft
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import IndexAdd
from daceopt.ir.scalar import types
from daceopt.passes import memory_budget
from daceopt.passes.transform import NearMiss, Outcome, Site, Transformation
from daceopt.transformations.distributed._averaging import average_gradient


@dataclass(frozen=True)
class Differentiate(Transformation):
    """Add the backward graph to a program whose gradients are wanted; later steps run on both graphs.

    before:  forward: y = f(x)
    after:   forward: y = f(x), saved t    backward: dx = f'(t) * dy
             of a training step: forward: y = f(x), dx = f'(t), update of x by dx

    Fusing before it means recomputing, after it storing (Rausch et al., DaCeML, section 5.3). ``policy``: ``recompute``
    or ``store`` what both could do; None: as the program asks. ``store``, ``recompute``: names of forward arrays, or of
    modules that they come from, with wildcards as in file names; predicates (functions of a ``ForwardArray``), or their
    names: "@elementwise", "@reductions", "@products". ``budget``: the bytes that a step may take beside
    what its caller gives and gets, or a share of what eager PyTorch saves ("60%"); ``by`` (of
    ``autodiff/storage_choice.py``) chooses what to store then, in at most ``seconds``. It is held where programs are
    compiled (``pipeline.derive``), which looks at what all steps have made of it.
    """

    level: ClassVar[str] = "differentiate"
    policy: str | None = None
    store: tuple[str | Predicate, ...] = ()
    recompute: tuple[str | Predicate, ...] = ()
    budget: int | str | None = None
    by: str = "best"
    seconds: float = 5.0

    def __post_init__(self) -> None:
        for option in ("store", "recompute"):
            object.__setattr__(self, option, _names(option, getattr(self, option)))
        if self.policy not in (None, *POLICIES):
            raise DaceoptError(f"policy={self.policy!r} of differentiate; expected None or one of {POLICIES}")
        if self.by not in BY:
            raise DaceoptError(f"by={self.by!r} of differentiate; expected one of {BY}")
        try:
            memory_budget.check("budget", self.budget)
        except (TypeError, ValueError) as error:
            raise DaceoptError(f"differentiate: {error}") from None

    def _storage(self, gradients: Gradients) -> Storage:
        budget = None if self.budget is None else memory_budget.resolve(self.budget, gradients.reference)
        policy, joined = self.policy or gradients.policy, gradients.update is not None
        sizes = tuple(gradients.sizes.items())
        request = self.store, self.recompute, budget, self.by, self.seconds
        return Storage(policy, *request, sizes, joined, makes_room=not joined)

    def match(self, graph: Graph) -> Iterator[Site | NearMiss]:
        """No site: a program is differentiated, not a graph."""
        return iter(())

    def run_program(self, program: Program) -> Outcome:
        """Differentiate ``program`` where its gradients are wanted and one of them is not zero."""
        gradients, graph = program.gradients, program.forward
        if gradients is None or program.backward is not None:
            return Outcome([], [])
        program.gradients = None
        outputs = [n for n in (graph.outputs[k] for k in gradients.outputs) if types.is_float(graph.dtype(n))]
        inputs = {role.position: name for name, role in program.inputs.items()}
        names = [inputs[k] for k in gradients.inputs]
        result = differentiate(graph, outputs, names, self._storage(gradients))
        for node in result.backward.nodes():
            if isinstance(node, IndexAdd):  # of a gather: the forward has read at these indices
                node.sure = True
        title = f"{graph.name} by {len(result.grad_inputs)} inputs"
        decision = f"; {result.decision}" if result.decision else ""
        if gradients.update is not None:
            _join(program, result, gradients.update)
            return Outcome([f"{title}, and their update{decision}"], [])
        if all(v is None for v in result.grad_inputs.values()):
            return Outcome([], [f"{graph.name}: every gradient is zero"])
        _add_backward(program, result, gradients.reduction)
        return Outcome([title + decision], [])


def _names(option: str, value: object) -> tuple[str | Predicate, ...]:
    """Raises DaceoptError for what is no list of names and predicates, and for a predicate that does not exist."""
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) or callable(v) for v in value):
        expected = "a list of names of arrays or modules, or of predicates"
        raise DaceoptError(f"{option}={value!r} of differentiate; expected {expected}")
    for name in value:
        if isinstance(name, str) and name.startswith("@") and name not in NAMED:
            raise DaceoptError(f"{option}={name!r} of differentiate; expected one of {', '.join(NAMED)}, or a function")
    return tuple(value)


def _add_backward(program: Program, result: Derivative, reduction: Reduction | None) -> None:
    forward, backward = result.forward, result.backward
    program.forward, program.backward = forward, backward
    arguments = {**program.inputs, **{n: Role(Kind.OUTPUT, k) for k, n in enumerate(forward.outputs)}}
    received = {n: role for n, role in arguments.items() if n in backward.inputs}
    received |= {g: Role(Kind.GRADIENT_OF_OUTPUT, forward.outputs.index(n)) for n, g in result.grad_outputs.items()}
    backward.outputs = []
    backward.name = f"{forward.name}_backward"
    for name, gradient in _averages(backward, program, result.grad_inputs, reduction).items():
        if gradient is not None:
            _own_output(backward, gradient, {*received, *backward.outputs})
            program.returned.append(Role(Kind.GRADIENT_OF_INPUT, program.inputs[name].position))
    forward.saved = [n for n in result.saved if n not in received and n not in backward.outputs]
    # what the backward reads of the call outlives it
    replaced_inputs = {
        k: old for k, old in forward.replaced.items() if forward.outputs[k] not in received and old not in received
    }
    forward.replaced = replaced_inputs
    backward.saved = list(forward.saved)
    # both programs take the same size symbols, in the same order, whichever input the backward still reads
    backward.symbols = dict(forward.symbols)
    program.received = {**{n: program.inputs[n] for n, _ in forward.symbols.values()}, **received}


def _averages(
    graph: Graph, program: Program, gradients: Mapping[str, str | None], reduction: Reduction | None
) -> Mapping[str, str | None]:
    """Input -> its gradient, averaged over ranks where that is wanted."""
    if reduction is None:
        return gradients
    names = {n: reduction.parameters.get(role.position) for n, role in program.inputs.items()}
    return {
        n: g if g is None or names[n] is None else average_gradient(graph, g, str(names[n]), reduction)
        for n, g in gradients.items()
    }


def _join(program: Program, result: Derivative, update: Update) -> None:
    """Let the forward graph compute the gradients, too, and what is done with them."""
    graph = program.forward = result.forward
    graph.saved = []
    forward, before = dict.fromkeys(graph.nodes()), set(graph.arrays())
    seeds = {g: _full(graph, name, update.seed) for name, g in result.grad_outputs.items()}
    grafted = graft(graph, result.backward, {n: n for n in result.backward.inputs if n not in seeds} | seeds)
    gradients = [None if g is None else grafted[g] for g in result.grad_inputs.values()]
    joint = graph.compute()
    update.extend(graph, list(result.grad_inputs), gradients)
    if result.backward.is_ordered:
        first = [*forward, *(n for n in joint if n not in forward)]
        graph.order = with_prompt(graph, first, [n for n in graph.compute() if n not in joint])
        graph.apart = {name: name not in before for name in graph.arrays()}
    added = [n for n in graph.inputs if n not in program.inputs]
    program.inputs |= {n: Role(Kind.INPUT, k) for k, n in enumerate(added, len(program.inputs))}


def _full(graph: Graph, name: str, value: float) -> str:
    """A constant like ``name`` of one value."""
    shape = [int(n) for n in graph.shape(name)]
    return graph.add_constant("seed", np.full(shape, value, types.to_numpy(graph.dtype(name))))


def _own_output(graph: Graph, name: str, names_in_use: set[str]) -> None:
    """``name`` as the graph's next output, or a copy of it where it is an output or an input already, or a view."""
    elsewhere = graph.is_given(name) or graph.is_view(name) or graph.is_part(name)
    if name in names_in_use or name in graph.saved or elsewhere:
        name = Builder(graph, "gradient").copy(name)
    graph.add_output(name)
