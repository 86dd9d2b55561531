"""What forward asks of small tensors that a module keeps (flags, counters, bounds) is known while it is traced.

``if self.ready:`` of a buffer would break the graph. Here Python is asked for the answer, and the program depends on
it: each call asks again. What a call has written before, or an argument decides, is known to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg

from daceopt.capture.torch.conditions import condition
from daceopt.capture.torch.gradient_scopes import storage
from daceopt.capture.torch.writes import written_nodes
from daceopt.torch_internals.dynamo_guards import ChainedSource, Guard, LocalSource, Source, names_in_guards
from daceopt.torch_internals.dynamo_tracing import ConstantVariable, Translator, VariableTracker

_LARGEST = 4096  # elements: looked at in each call

_PURE = frozenset(
    "eq ne lt le gt ge any all logical_not logical_and logical_or logical_xor not_ invert bitwise_not and_ or_ xor"
    " add sub mul neg abs mod remainder floordiv truediv floor_divide true_divide div sum max min amax amin"
    " isnan isinf isfinite getitem select squeeze unsqueeze view reshape flatten bool int long float double detach"
    " clone cpu".split()
)
"""Names of operators, functions and methods that read their operands alone."""

_OF_ARRAYS = (np.allclose, np.array_equal, np.array_equiv)

_COMPARED = (*_OF_ARRAYS, torch.equal, torch.allclose)
"""Functions whose answer is True or False."""


class _Computation(NamedTuple):
    """``calls``: what is computed of the values of ``leaves``, in their order."""

    leaves: list[fx.Node]
    calls: list[fx.Node]

    def run(self, values: Sequence[torch.Tensor], structure: object) -> Any:
        """``structure``, where each node is replaced by its value."""
        results = dict(zip(self.leaves, values, strict=True))
        with torch.no_grad():
            for node in self.calls:
                args, kwargs = map_arg((node.args, node.kwargs), results.__getitem__)
                call = getattr(torch.Tensor, node.target) if node.op == "call_method" else node.target
                results[node] = call(*args, **kwargs)
        return map_arg(structure, results.__getitem__)


def answer(tx: Translator, ask: Callable[..., Any], *operands: VariableTracker) -> object:
    """What Python answers to ``ask`` of these tensors and constants; None where that is not known."""
    if len(tx.output.tracers) != 1 or (nodes := _nodes(operands)) is None:
        return None
    computation = _computation(tx.output.graph, [n for n in nodes if isinstance(n, fx.Node)])
    if computation is None:
        return None
    ask, arguments = partial(_ask, ask, computation, nodes), [n.meta["grapharg"] for n in computation.leaves]
    values = [argument.example for argument in arguments]
    try:
        result = ask(values)
    except (RuntimeError, IndexError, ValueError, TypeError):  # as the call itself will raise it
        return None
    question = _Question(ask, result, [a.source for a in arguments], [v.clone() for v in values])
    tx.output.guards.add(condition(question.check))
    return result


def comparison(self: VariableTracker, tx: Translator, args: Any, kwargs: Any) -> VariableTracker | None:
    """The truth of ``np.allclose``, ``torch.equal`` and their like of what a module keeps; None where it is unknown."""
    if self.value not in _COMPARED or kwargs:
        return None
    truth = answer(tx, self.value, *args)
    return None if truth is None else ConstantVariable.create(bool(truth))


def branch(original: Callable[..., Any], self: Any, instruction: Any) -> None:
    """A branch on what a module keeps: ``if self.ready:`` of a buffer."""
    value, height = self.stack[-1], len(self.stack)
    truth = answer(self, bool, value) if value.is_tensor() else None
    if truth is not None:
        self.stack[-1] = ConstantVariable.create(truth)
    original(self, instruction)
    if truth is not None and len(self.stack) == height:  # the value of ``a or b``
        self.stack[-1] = value


def _ask(ask: Callable[..., Any], computation: _Computation, nodes: object, values: Sequence[torch.Tensor]) -> object:
    operands = computation.run(values, nodes)
    if ask in _OF_ARRAYS:
        operands = [x.numpy() if isinstance(x, torch.Tensor) else x for x in operands]
    return ask(*operands)


def _nodes(operands: Sequence[VariableTracker]) -> tuple[Any, ...] | None:
    """Operands as nodes of the graph or constants."""
    operands = [x.realize() for x in operands]
    if not any(x.is_tensor() for x in operands) or not all(x.is_tensor() or x.is_python_constant() for x in operands):
        return None
    return tuple(x.as_proxy().node if x.is_tensor() else x.as_python_constant() for x in operands)


def _computation(graph: fx.Graph, nodes: Sequence[fx.Node]) -> _Computation | None:
    """How the nodes are computed of what modules keep; None where they depend on anything else."""
    needed = set(_needs(nodes))
    leaves = [n for n in graph.nodes if n in needed and n.op == "placeholder"]
    calls = [n for n in graph.nodes if n in needed and n.op != "placeholder"]
    if not all(map(_is_kept, leaves)) or not all(map(_is_pure, calls)):
        return None
    changed = {storage(x) for n in graph.nodes for x in written_nodes(n)}
    return _Computation(leaves, calls) if changed.isdisjoint(map(storage, needed)) else None


def _needs(nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
    visited, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [n for n in node.all_input_nodes if n not in visited]
        visited.update(node.all_input_nodes)


def _is_pure(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in _PURE and "out" not in node.kwargs


def _is_kept(leaf: fx.Node) -> bool:
    """Is it a small tensor, or array, that a module keeps, and no optimizer changes?"""
    argument = leaf.meta.get("grapharg")
    if argument is None or not argument.is_tensor or argument.source is None or not _is_found(argument.source):
        return False
    value = argument.example
    is_state = type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided
    return is_state and value.device.type == "cpu" and value.numel() <= _LARGEST


def _is_found(source: Source) -> bool:
    """Does a function find it in a module, a global or a cell? What it is called with may be another one each time."""
    kind, root = source.guard_source, source
    while isinstance(root, ChainedSource):
        root = root.base
    of_module = kind.is_unspecialized_nn_module() or kind.is_specialized_nn_module()
    return of_module or not (isinstance(root, LocalSource) and root.is_input)


class _Question(NamedTuple):
    """What Python has ``answered`` to ``ask`` of the tensors of these sources, ``before`` being what they held."""

    ask: Callable[..., Any]
    answered: Any
    sources: Sequence[Source]
    before: Sequence[torch.Tensor]

    def check(self, builder: Any, _: Guard) -> None:
        """Add the guard that the answer is the same of what the tensors hold now."""
        names = ", ".join(source.name for source in self.sources)
        answered = repr(self.answered)  # NaN is no other answer, a negative zero is one
        find = eval(f"lambda L: [{names}]", {**names_in_guards(), **builder.scope})

        def same(frame: object) -> bool:
            values = find(frame)
            return all(map(torch.equal, values, self.before)) or repr(self.ask(values)) == answered

        text = f"a branch, or a number, depends on {names}"
        builder.guard_manager.root.add_epilogue_lambda_guard(same, [text], None)
