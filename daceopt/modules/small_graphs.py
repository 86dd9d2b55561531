"""Graphs of so little work that eager PyTorch has run them before a program has been called.

A graph stays in eager PyTorch only where that is faster than a program that computes in no time; what fusion may save
counts as if eager PyTorch took as much longer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from daceopt.capture.torch import effects
from daceopt.modules import call_times
from daceopt.modules.description import specialise
from daceopt.modules.repeated_call import trains
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.fake_tensors import DataDependentOutputException, FakeTensorMode
from daceopt.torch_internals.fx_tracing import compile_forward
from daceopt.torch_internals.modes import TorchDispatchMode
from daceopt.torch_internals.pytree import tree_leaves

if TYPE_CHECKING:
    from daceopt.capture.torch.traced import Traced

CALLS = 100
"""A graph of more calls than these is never small."""

_ELEMENT, _OPERATION = 0.15e-3, 2e-6  # microseconds that fusion saves at most: of an element moved, of an operation
_PASSES = 3  # over the elements of a forward pass, with its backward pass

_KNOWN = frozenset(
    "_adaptive_avg_pool2d _local_scalar_dense _prelu_kernel _to_copy _unsafe_index _unsafe_index_put _unsafe_view "
    "alias arange argmax argmin as_strided_scatter bernoulli binary_cross_entropy binary_cross_entropy_with_logits "
    "cat clone constant_pad_nd copy cummax cummin cumprod cumsum detach diag_embed diagonal_scatter dot embedding "
    "empty empty_like empty_permuted empty_strided eye fill flip floor_divide full full_like gather glu hardswish "
    "huber_loss index index_add index_copy index_fill index_put index_select linalg_vector_norm linspace "
    "log_sigmoid_forward logcumsumexp logsumexp masked_scatter mse_loss mv native_dropout native_group_norm new_empty "
    "new_empty_strided new_full new_ones new_zeros nll_loss2d_forward nll_loss_forward ones ones_like "
    "reflection_pad1d reflection_pad2d repeat repeat_interleave replication_pad1d replication_pad2d roll rot90 rsub "
    "scalar_tensor scatter scatter_add scatter_reduce select_scatter slice_scatter smooth_l1_loss soft_margin_loss "
    "sort stack take topk tril tril_indices triu triu_indices unbind unsafe_split unsafe_split_with_sizes var "
    "var_mean zero zeros zeros_like".split()
)
"""Operators beside those that torch marks (views, pointwise, reductions) whose time is that of their elements."""

_KNOWN_BY_NAME = _KNOWN | call_times.WEIGHTS.keys() | call_times.ELEMENTS.keys()


@dataclass(frozen=True)
class CallEstimate:
    """Microseconds of a graph in eager PyTorch, and what fusion may save beyond them, at most; of a program at least.
    ``elements``: of the tensors of the call, for as many of which that holds."""

    eager: float
    program: float
    elements: int

    @property
    def gain(self) -> float:
        """Microseconds that a program saves at most."""
        return self.eager - self.program

    def __str__(self) -> str:
        return (
            f"eager PyTorch, by the cost model: its operators take {self.eager:.1f} us, "
            f"a call of a program {self.program:.1f} us before it computes"
        )

    def holds(self, arguments: Sequence[object]) -> bool:
        """Whether a call with these arguments takes no longer."""
        return _elements(arguments) <= self.elements


FOLLOWS = CallEstimate(0.0, 0.0, sys.maxsize)
"""Of a graph that runs only where another one has run, and is as small."""


def estimate(traced: Traced, inputs: Sequence[object]) -> CallEstimate | None:
    """How long a graph takes at most in eager PyTorch, and at least as a program; None where nobody knows. ``inputs``:
    of the first call."""
    if traced.device != "cpu" or not _is_plain(traced.graph) or effects.lasting(traced.graph.graph):
        return None
    is_trained = trains(traced)
    times = call_times.TRAINING if is_trained else call_times.INFERENCE
    program = times.of_program(sum(isinstance(x, torch.Tensor) for x in traced.inputs))
    if not program:
        return None
    try:
        work = _work(traced, inputs)
    except Exception:  # whatever no fake tensor tells: who compiles the graph says what is wrong with it
        return None
    saved = (_ELEMENT * work.elements + _OPERATION * work.products) * (_PASSES if is_trained else 1)
    eager = times.of_eager(work.operators, _modules(traced.graph.graph)) + saved
    most = 1 + min(1.0, max(0.0, program - eager) / max(saved, 1e-3))  # as large are calls that are small, too
    return CallEstimate(eager, program, int(_elements(inputs) * most))


def while_small(
    estimate: CallEstimate, eager: Callable[..., Any], compiled: Callable[[Sequence[Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """A graph that runs in ``eager`` while the tensors of a call are as small as they were in the first; the first
    larger ones bring a program, ``compiled`` for their sizes, which runs all calls from then on that are as large."""
    programs: list[Callable[..., Any]] = []
    lock = threading.RLock()

    def run(*arguments: object) -> object:
        if estimate.holds(arguments):
            return eager(*arguments)
        with lock:
            if not programs:
                programs.append(compiled(arguments))
        return programs[0](*arguments)

    return run


def _is_plain(graph: fx.GraphModule) -> bool:
    """Whether it has few calls, and each of them means in eager PyTorch what it meant to Dynamo."""
    calls = [n for n in graph.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    bodies = [n for n in graph.graph.nodes if n.op == "get_attr"]
    return len(calls) <= CALLS and not bodies and not any(_is_special(n) for n in calls)


def _is_special(node: fx.Node) -> bool:
    return node.op == "call_module" or isinstance(node.target, torch_operators.HigherOrderOperator)


def _modules(graph: fx.Graph) -> int:
    """How many modules are called inside."""
    return len({key for node in graph.nodes for key in node.meta.get("nn_module_stack") or ()})


def _elements(values: Sequence[object]) -> int:
    return sum(v.numel() for v in values if isinstance(v, torch.Tensor))


def _work(traced: Traced, inputs: Sequence[object]) -> _Work:
    fakes = specialise(traced, inputs).inputs
    for fake, like, real in zip(fakes, traced.inputs, inputs):
        if getattr(like, "item_memo", None) is not None:  # a number of Python, which the graph reads
            fake.constant = real
    mode = next((f.fake_mode for f in fakes if isinstance(f, torch.Tensor)), None) or FakeTensorMode()
    compile_forward(traced.graph)  # which would print the error as well
    longest = max((n for f in fakes if isinstance(f, torch.Tensor) for n in f.shape), default=1)
    with torch.no_grad(), mode, _Work(longest) as work:
        traced.graph.forward(*fakes)
    return work


class _Work(TorchDispatchMode):
    """Counts calls of operators, elements that they read and write, and operations of products. NotImplementedError for
    an operator of whose time nothing is known. ``longest``: of all axes of the arguments; a number that only data tell
    is taken to be as large, as one that counts what they hold may be."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.operators, self.elements, self.products = 0.0, 0, 0
        self._longest = longest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        try:
            result = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            dtype = args[0].dtype
            result = self._longest if not dtype.is_floating_point else float(self._longest)
            result = bool(result) if dtype == torch.bool else result
        if func.namespace == "prim":  # what a tensor says of itself
            return result
        product = flop_registry.get(func.overloadpacket)
        if product is not None:
            self.operators += call_times.PRODUCT
            self.products += int(product(*args, **(kwargs or {}), out_val=result))
            return result
        self.operators += call_times.WEIGHTS.get(_name(func), 1.0)
        if not func.is_view:
            if not _is_known(func):
                raise NotImplementedError(str(func))
            self.elements += call_times.ELEMENTS.get(_name(func), 1) * _elements(list(_tensors((args, result))))
        return result


@cache
def _is_known(func: Any) -> bool:
    return _name(func) in _KNOWN_BY_NAME or any(
        tag in (torch.Tag.pointwise, torch.Tag.reduction) for tag in _tags(func)
    )


def _tags(func: Any) -> Iterator[torch.Tag]:
    """Of an operator, and of the form that does not work in place, which alone torch marks."""
    yield from func.tags
    if func.namespace == "aten":
        packet = getattr(torch.ops.aten, _name(func), func.overloadpacket)
        yield from (tag for overload in packet.overloads() for tag in getattr(packet, overload).tags)


def _name(func: Any) -> str:
    """An operator's name, without the mark of what works in place."""
    return str(func.overloadpacket.__name__).removesuffix("_")


def _tensors(values: object) -> Iterator[torch.Tensor]:
    leaves = tree_leaves(values)
    return (t for t in leaves if isinstance(t, torch.Tensor))
