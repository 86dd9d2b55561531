"""A graph of TorchDynamo becomes a functional graph of ATen operators, traced by PyTorch itself.

What has a rule of ours as a whole (``KEPT``) stays whole; in-place operators and views of what they change are resolved
by PyTorch's functionalization, which runs only for graphs that have any.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import fx

from daceopt.capture.torch import assertions, custom_gradient, hooks, marks
from daceopt.capture.torch.encoder_layer import encoder_layer
from daceopt.capture.torch.functional_values import plain
from daceopt.capture.torch.functional_writes import Before, check_views, fill_diagonal, keeping_gradients, windows
from daceopt.capture.torch.gradient_scopes import (
    differentiable_nodes,
    requires_grad,
    stop_gradients,
    storage,
    unseen_writes,
)
from daceopt.capture.torch.lines import line_of, note_line
from daceopt.capture.torch.numbers import symbols_kept
from daceopt.capture.torch.placement import place
from daceopt.capture.torch.table import decompositions, rules
from daceopt.capture.torch.writes import written_nodes
from daceopt.errors import Unsupported
from daceopt.torch_internals import torch_operators
from daceopt.torch_internals.decompositions import enable_python_dispatcher, whole_operators
from daceopt.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from daceopt.torch_internals.functional_tensors import (
    FunctionalTensor,
    FunctionalTensorMode,
    has_new_storage,
    is_written,
    without_functionalization,
)
from daceopt.torch_internals.fx_tracing import make_fx
from daceopt.torch_internals.pytree import tree_leaves, tree_map
from daceopt.torch_internals.torch_operators import generic_associative_scan, register_hook_op

_aten = torch.ops.aten

_RESIZED = "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d bicubic2d".split()
_RESIZED_ELSE = "nearest_exact1d nearest_exact2d nearest_exact3d bilinear2d_aa bicubic2d_aa".split()

_ASSERTIONS = (_aten._assert_async.default, _aten._assert_async.msg, _aten._functional_assert_async.msg)

# composite operators that our rules take whole, although PyTorch would take them apart below autograd
KEPT = (
    _aten.linear.default,
    _aten.matmul.default,
    _aten.dropout.default,
    _aten.rms_norm.default,
    _aten.scaled_dot_product_attention.default,
    _aten.one_hot.default,
    _aten._pad_circular.default,
    _aten.lstm.input,
    _aten.gru.input,
    _aten.rnn_tanh.input,
    _aten.rnn_relu.input,
    *(getattr(_aten, f"upsample_{name}").vec for name in _RESIZED),
    *(getattr(_aten, f"_upsample_{name}").vec for name in _RESIZED_ELSE),
)


_REFLECTED = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
    operator.eq: operator.eq,
    operator.ne: operator.ne,
}

# functions whose operator stays whole, where autocast acts on what PyTorch takes it apart into -> on which devices
_NARROWED: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((torch.lstm, torch.rnn_tanh, torch.rnn_relu), ("cpu", "cuda")),
    torch.gru: ("cuda",),  # cuDNN's
}
_CHECKS = "aten::_linalg_check_errors"  # stays a call like others, as ``_keep_checks`` expects it
_OPENED: dict[Any, Callable[..., Any]] = {torch_operators.transformer_encoder_layer: encoder_layer}


@dataclass(frozen=True)
class Functional:
    """A functional graph of ATen operators.

    ``graph`` takes what the graph of Dynamo takes. Its outputs are the results of the call (``results`` of them, which
    may be None or numbers), conditions that have to hold (``asserted`` of them), then the new values of the inputs at
    the positions ``mutated``.
    """

    graph: fx.GraphModule
    results: int
    mutated: tuple[int, ...]
    backwards: tuple[custom_gradient.Backward, ...] = ()
    asserted: int = 0


def functional(graph: fx.GraphModule, inputs: Sequence[object]) -> Functional:
    """Trace a graph of Dynamo on ``inputs``, fake tensors and symbolic sizes in the order of its placeholders."""
    for region in _regions(graph):
        stop_gradients(region)
        hooks.check(region)
        _reflect(region)
    mutating = any(map(written_nodes, graph.graph.nodes))
    with _keep_whole(), fx.traceback.preserve_node_meta():  # nn_module_stack, for reports
        body = DynamoInterpreter(graph)
        result = _functional(body, inputs, mutating)
    count = len(body.asserted)
    return replace(result, results=result.results - count, asserted=count)


def _regions(graph: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graph, and those of the calls of ``torch.utils.checkpoint`` in it."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.tag_activation_checkpoint):
        yield from _regions(getattr(graph, node.args[0].target))
    yield graph


def eager_types(graph: fx.GraphModule, inputs: Sequence[object]) -> list[torch.dtype | None]:
    """The types of what a graph of Dynamo gives by PyTorch's own operators (None for what is no tensor). Dynamo knows
    those of PyTorch's forms in Python, which may differ: of an LSTM under autocast whose input requires a gradient."""
    with torch.no_grad(), on_fakes(inputs):
        results = _Opening(graph).run(*inputs)
    return [r.dtype if isinstance(r, torch.Tensor) else None for r in results]


def _reflect(graph: fx.GraphModule) -> None:
    """Compare as Python does, which asks a Parameter on the right first, its class being derived from that of tensors:
    the result is in memory as the operand that is asked."""
    for node in graph.graph.nodes:
        if node.target in _REFLECTED and list(map(_is_parameter, node.args)) == [False, True]:
            node.target, node.args = _REFLECTED[node.target], node.args[::-1]
    graph.recompile()


def _is_parameter(argument: object) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("example_value"), torch.nn.Parameter)


def trace(fn: Callable[..., Any], inputs: Sequence[object]) -> Functional:
    """The functional graph of ``fn``, which gives a list and changes none of its fake ``inputs``; all composite
    operators are taken apart. Raises Unsupported where the value of a number decides about it."""
    with _not_rewritten():
        return _functional(fn, inputs, is_derivative=True)


def _functional(
    fn: Callable[..., Any], inputs: Sequence[object], mutating: bool = False, is_derivative: bool = False
) -> Functional:
    """``mutating``: something is written in place for sure, so the trace that would find that out is not made."""
    if not mutating:
        graph, backwards = marks.trace_with_marks(lambda: _trace(fn, inputs), is_derivative)
        if not _is_mutating(graph):
            return Functional(graph, _result_count(graph), (), backwards)
    mutated: list[int] = []
    body = partial(_functionalize, fn, mutated)
    graph, backwards = marks.trace_with_marks(lambda: _trace(body, inputs), is_derivative)
    return Functional(graph, _result_count(graph) - len(mutated), tuple(mutated), backwards)


def _result_count(graph: fx.GraphModule) -> int:
    return len(graph.graph.output_node().args[0])


def _is_mutating(graph: fx.GraphModule) -> bool:
    schemas = [getattr(n.target, "_schema", None) for n in graph.graph.nodes if n.op == "call_function"]
    return any(s is not None and s.is_mutable for s in schemas)


def _trace(
    body: Callable[..., Any], inputs: Sequence[object]
) -> tuple[fx.GraphModule, tuple[custom_gradient.Backward, ...]]:
    """The graph, and the backward graphs of its markers."""
    names = ", ".join(f"a{k}" for k in range(len(inputs)))
    flat = eval(f"lambda {names}: body({names})", {"body": body})  # make_fx counts the parameters of what it traces
    tracer = make_fx(flat, decomposition_table=decompositions(), tracing_mode="real", _allow_non_fake_inputs=True)
    with torch.no_grad(), _as_aot_traces(inputs), custom_gradient.collect() as backwards:
        return _keep_checks(tracer(*inputs)), tuple(backwards)


def _keep_checks(graph: fx.GraphModule) -> fx.GraphModule:
    """Nothing reads what a check gives, so that it would be dropped: those of linear algebra are left to the operator
    that they follow. Raises Unsupported for others."""
    for node in graph.graph.nodes:
        if node.target in _ASSERTIONS:
            raise Unsupported("an assert on the values of a tensor")
        if node.target is _aten._linalg_check_errors.default:
            checked = node.args[0].args[0]
            if not any(a.name == "check_errors" for a in checked.target._schema.arguments):
                raise Unsupported(f"the check of what {checked.target} gives")
            checked.kwargs = {**checked.kwargs, "check_errors": True}
    return graph


class _Opening(fx.Interpreter):
    """Takes apart what autocast acts inside of; the shape rules of these operators do not know of it."""

    def call_function(self, target: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> object:
        opened = _OPENED.get(target)
        if opened is not None and _autocast_type(("cpu", "cuda"), args, kwargs) is None:
            opened = None
        return super().call_function(target, args, kwargs) if opened is None else opened(*args, **kwargs)


class DynamoInterpreter(_Opening):
    """Runs a graph of Dynamo; higher-order operators of autograd become plain ones."""

    def __init__(self, graph: fx.GraphModule, is_detached: bool = False) -> None:
        """``is_detached``: nothing in the graph is differentiated."""
        super().__init__(graph)
        self._is_detached = is_detached
        self._wholes: dict[int | None, FunctionalTensor] = {}  # memory -> the first tensor in it
        self.asserted: Sequence[torch.Tensor] = ()  # conditions of the assertions that have been met

    def __call__(self, *inputs: object) -> list[object]:
        self.asserted, self._wholes = [], {}
        result = self.run(*inputs)
        return [*(result if isinstance(result, (list, tuple)) else [result]), *self.asserted]

    def run_node(self, n: fx.Node) -> object:
        try:
            return self._run_node(n)
        except Exception as error:
            note_line(error, line_of(n))
            raise

    def _run_node(self, n: fx.Node) -> object:
        operands = {x: v for x in n.all_input_nodes if isinstance(v := self.env[x], FunctionalTensor)}
        before = {x: Before(value, self._wholes.get(storage(x), value)) for x, value in operands.items()}
        for operand in operands.keys() & written_nodes(n):
            check_views(operands[operand], requires_grad(operand))
        with keeping_gradients([before[x] for x in before if self._is_unseen(n, x)]):
            result = self._hook(n) if n.target is register_hook_op else super().run_node(n)
        if isinstance(result, FunctionalTensor) and storage(n) is not None:
            self._wholes.setdefault(storage(n), result._base if result._is_view() else result)
        if n.target is torch.ops.higher_order.tag_activation_checkpoint:  # whose nodes have been looked at
            return result
        for operand in [x for x, old in before.items() if old.is_changed()]:
            check_views(operands[operand], requires_grad(operand))
            before[operand].keep_strides()
            if operand in self._differentiated and not any(storage(x) == storage(operand) for x in written_nodes(n)):
                raise Unsupported(f"{_name(n.target)} writes into {operand.name}, which requires a gradient")
        return result

    def _hook(self, n: fx.Node) -> object:
        """The first hook on a tensor sees its gradient first: the last one is applied to the tensor itself."""
        (tensor, *hook), _ = self.fetch_args_kwargs_from_env(n)
        registered = [*self._hooks.pop(n.args[0], []), hook]
        if not hooks.is_last(n):
            self._hooks[n] = registered
            return tensor
        for body, *values in reversed(registered):
            tensor = hooks.apply(tensor, body, *values)
        return tensor

    @cached_property
    def _hooks(self) -> dict[Any, list[list[Any]]]:
        """Hooks that wait for others on the same tensor, by the node that registered the last of them."""
        return {}

    def _is_unseen(self, n: fx.Node, operand: fx.Node) -> bool:
        """Whether ``n`` writes into the memory of an operand that autograd differentiates as if it did not."""
        if operand not in self._differentiated:
            return False
        writes = [(n, x) in self._unseen for x in written_nodes(n) if storage(x) == storage(operand)]
        return bool(writes) and all(writes)

    @cached_property
    def _unseen(self) -> set[tuple[fx.Node, fx.Node]]:
        return unseen_writes(self.graph)

    @cached_property
    def _differentiated(self) -> frozenset[fx.Node]:
        return frozenset() if self._is_detached else differentiable_nodes(self.graph)

    def call_method(self, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if target == "unfold" and isinstance(args[0], FunctionalTensor):
            return windows(*args, **kwargs)
        return place(target, super().call_method(target, args, kwargs), args, kwargs)

    def call_function(self, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        if target is torch.ops.higher_order.autograd_function_apply:
            fwd, bwd, *operands = args
            return custom_gradient.apply(DynamoInterpreter(fwd, is_detached=True), bwd, *operands, **kwargs)
        if target is torch.ops.daceopt.with_gradient.default:
            return custom_gradient.again(self.module.meta[custom_gradient.BACKWARDS], *args)
        if target is torch.ops.higher_order.tag_activation_checkpoint:
            inner = DynamoInterpreter(args[0])
            result = inner.run(*args[1:])
            self.asserted = [*self.asserted, *inner.asserted]
            return result
        if target is assertions.assertion:
            self.asserted = [*self.asserted, assertions.condition(*args, **kwargs)]
            return None
        if target is torch.ops.higher_order.associative_scan:
            # in its steps: as one operator it would be traced with its operands detached
            return generic_associative_scan(args[0], list(args[1]), additional_inputs=tuple(args[2]))
        if target is torch.nn.functional.scaled_dot_product_attention:
            _check_lengths(*args, **kwargs)
        places = _NARROWED.get(target)
        if target is torch.gru and {x.dtype for x in args[:2]} == {torch.get_autocast_dtype("cpu")}:
            places = ("cpu", "cuda")  # on a CPU its gates have the type of input and state, whatever autocast rounds
        if places is not None and (dtype := _autocast_type(places, args, kwargs)) is not None:
            args, kwargs = tree_map(lambda value: _narrow(value, dtype), (args, kwargs))
        return place(target, super().call_function(target, args, kwargs), args, kwargs)


def _autocast_type(places: Sequence[str], *arguments: object) -> torch.dtype | None:
    """The type that autocast gives to factors where these arguments are, one of ``places``; None where it is off."""
    place = next(x.device.type for x in tree_leaves(arguments) if isinstance(x, torch.Tensor))
    return torch.get_autocast_dtype(place) if place in places and torch.is_autocast_enabled(place) else None


def _narrow(value: Any, dtype: torch.dtype) -> torch.Tensor:
    is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return value.to(dtype) if is_wide else value


def _check_lengths(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> None:
    """Note that keys, values and mask are of one length, which PyTorch's shape rule of attention leaves open."""
    torch_operators.check(key.shape[-2] == value.shape[-2])
    if attn_mask is not None and attn_mask.dim():
        torch_operators.check(attn_mask.shape[-1] in (1, key.shape[-2]))


def _functionalize(body: Callable[..., Any], mutated: list[int], *inputs: object) -> list[Any]:
    """What ``body`` gives under PyTorch's functionalization, and the new values of the inputs that it changes, which
    are those ``mutated`` afterwards."""
    above = without_functionalization()
    with above, torch_operators.without_effect(_CHECKS), FunctionalTensorMode():
        wrapped = [FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        results = body(*wrapped)
        mutated[:] = [k for k, x in enumerate(wrapped) if isinstance(x, torch.Tensor) and _is_changed(x)]
        values = [plain(x) for x in results]
        return [*values, *(plain(wrapped[k]) for k in mutated)]


def _is_changed(tensor: torch.Tensor) -> bool:
    if has_new_storage(tensor):
        raise Unsupported("an argument gets another storage (by set_ or .data)")
    return is_written(tensor)


def _name(target: object) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


@contextmanager
def _as_aot_traces(inputs: Sequence[object]) -> Iterator[None]:
    """The surroundings in which PyTorch's own compilers trace."""
    with on_fakes(inputs), enable_python_dispatcher():  # without it nothing of ``KEPT`` stays whole
        yield


@contextmanager
def on_fakes(inputs: Sequence[object]) -> Iterator[None]:
    """Everything is fake, backward runs in this thread, and there are no cached casts of weights, which would belong to
    another trace."""
    mode = next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)
    cached = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(mode if mode is not None else FakeTensorMode())
        stack.enter_context(symbols_kept(mode))
        torch.set_autocast_cache_enabled(False)
        stack.callback(torch.set_autocast_cache_enabled, cached)
        yield


@contextmanager
def _keep_whole() -> Iterator[None]:
    """Operators of ``KEPT`` reach the trace as they are (PyTorch's own way for ``torch.export``)."""
    with ExitStack() as stack:
        stack.enter_context(whole_operators({**dict.fromkeys(KEPT, _as_it_is), **_REWRITTEN}))
        stack.enter_context(_not_rewritten())
        yield


@contextmanager
def _not_rewritten() -> Iterator[None]:
    """Operators with a rule are not replaced by PyTorch's forms in Python, which it prefers even above decompositions.

    Their derivatives differ from those of the operators at NaN and infinity.
    """
    key, composite = torch_operators.AUTOGRAD, torch_operators.COMPOSITE
    composites = [op for op in rules() if key in op.py_kernels and composite not in op.py_kernels]
    removed = {op: op.py_kernels.pop(key) for op in composites}
    for op in composites:
        torch_operators.forget_kernels(op)
    try:
        yield
    finally:
        for op, kernel in removed.items():
            op.py_kernels[key] = kernel
            torch_operators.forget_kernels(op)


def _as_it_is(*args: object, **kwargs: object) -> object:
    return NotImplemented


def _dropout(tensor: torch.Tensor, probability: float, train: bool) -> torch.Tensor:
    """Where nothing is dropped the result is the very argument, and what is written into it, too."""
    return NotImplemented if train and probability != 0 else tensor


_REWRITTEN = {_aten.dropout.default: _dropout, _aten.fill_diagonal_.default: fill_diagonal}
