"""Where Dynamo traces something other than what Python does, it traces the latter for us, or breaks its graph.

A method of Dynamo's is replaced once, for the graphs of our backends alone.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn, get_origin

import numpy as np
import sympy
import torch
from torch import fx, nn
from torch.distributions import constraints

from daceopt.capture.torch import (
    assertions,
    backward_switches,
    cached_functions,
    decided,
    exchanges,
    formulas,
    inner_leaves,
    items,
    loggers,
    marks,
    number_constants,
    numpy_scalars,
    reentrant,
    state_values,
)
from daceopt.capture.torch.batch_average import momentum_of, normalize_with_average
from daceopt.capture.torch.conditions import note_exception
from daceopt.capture.torch.lines import UNLIKE_PYTHON
from daceopt.capture.torch.numbers import (
    MATHEMATICS,
    PARTIAL,
    error_of,
    is_power_below_zero,
    power_below_zero,
    symbols_kept,
)
from daceopt.capture.torch.recurrent_shapes import FUNCTIONS, are_of_one_type, whole_layers
from daceopt.capture.torch.shape_changes import BEFORE, CHANGES, Geometry
from daceopt.capture.torch.spelling import is_negative_zero
from daceopt.capture.torch.writes import note
from daceopt.torch_internals.dynamo_guards import GuardBuilder, is_of_global
from daceopt.torch_internals.dynamo_tracing import (
    ConstantVariable,
    ObservedException,
    SymNodeVariable,
    Translator,
    UserDefinedObjectVariable,
    VariableTracker,
    break_graph,
    current_backend,
    current_translator,
    function_of,
    inside_of,
    raise_in_code,
)
from daceopt.torch_internals.replacements import branches, renew_tables, replace
from daceopt.torch_internals.torch_operators import batch_norm_forward, register_hook_op

Method = Callable[..., Any]

OURS = "daceopt_backend"
"""The attribute that marks a backend whose graphs are traced so."""

_EMBEDDINGS = (nn.functional.embedding, nn.functional.embedding_bag)

_CHECKING = (nn.functional.gaussian_nll_loss,)
"""Functions of torch that look at data, of which Dynamo would make one call."""

_TRUE = ConstantVariable.create(True)

_UNTRACED = frozenset({"retains_grad", "_backward_hooks", "_post_accumulate_grad_hooks", "output_nr"})


def install() -> None:
    """Replace the methods, if that is not done yet."""
    for name, method in _REPLACED.items():
        replace(name, method, when=_is_ours)
    replace("canonicalize_bool_expr", formulas.normal_form)
    renew_tables()
    marks.install()


def _is_ours() -> bool:
    return bool(getattr(current_backend(), OURS, False))


def _break(reason: str, hint: str) -> NoReturn:
    break_graph(reason, UNLIKE_PYTHON, [hint])


def _draw(original: Method, self: Any, *args: object, **kwargs: object) -> VariableTracker:
    if self.source is not None:
        _break("numbers of a random.Random that outlives the call", "draw them outside of forward")
    return original(self, *args, **kwargs)


def _call_numpy(original: Method, self: Any, *args: object, **kwargs: object) -> VariableTracker:
    """Dynamo would draw other numbers, of PyTorch's generator."""
    if isinstance(getattr(self.value, "__self__", None), np.random.RandomState):
        _break("random numbers of NumPy", "draw them outside of forward, or by torch")
    return state_values.comparison(self, *args, **kwargs) or original(self, *args, **kwargs)


def _wrap_list(original: Method, self: object, value: object) -> VariableTracker:
    if isinstance(value, collections.deque) and value.maxlen is not None:
        _break("a collections.deque with maxlen", "keep it outside of forward")
    return original(self, value)


def _wrap_tensor(original: Method, self: Any, value: torch.Tensor) -> VariableTracker:
    """The graph breaks where something is done with a sparse tensor, not where it comes in."""
    if value.layout in (torch.strided, torch.jagged):
        return original(self, value)
    self.install_guards(GuardBuilder.TYPE_MATCH)
    return _Sparse(value, source=self.source)


class _Sparse(UserDefinedObjectVariable):
    """A sparse tensor, of which nothing is known: another call may bring a dense one."""

    def _break(self, *args: object, **kwargs: object) -> NoReturn:
        _break(f"a tensor of layout {self.value.layout}", "")

    as_proxy = call_method = var_getattr = tp_getattro_impl = call_obj_hasattr = _break


def _wrap_float(original: Method, self: Any, value: float) -> VariableTracker:
    """A negative zero is a constant of its program, as NaN is: the symbol would have no sign."""
    if not is_negative_zero(value):
        return original(self, value)
    self.install_guards(GuardBuilder.CONSTANT_MATCH)
    return ConstantVariable.create(value, source=self.source)


def _enter_inference_mode(original: Method, self: object, *args: object) -> NoReturn:
    _break("torch.inference_mode inside of forward", "use torch.no_grad there")


def _attribute_of_tensor(original: Method, self: VariableTracker, tx: Translator, name: str) -> VariableTracker:
    if name in _UNTRACED:
        _break(f"{name} of a tensor", "read it outside of forward")
    if name in inner_leaves.READ:
        inner_leaves.check_read(self)
    return original(self, tx, name)


def _call_torch(original: Method, self: VariableTracker, tx: Translator, args: Any, kwargs: Any) -> VariableTracker:
    """The encoder leaves padded positions out (they are zero then) unless it is compiled, and asks whether it is."""
    forward = nn.TransformerEncoder.forward.__code__
    if self.value is nn.functional.batch_norm and momentum_of(args, kwargs).is_tensor():
        return tx.inline_user_function_return(VariableTracker.build(tx, normalize_with_average), args, kwargs)
    is_own_question = (
        self.value is torch.compiler.is_compiling and tx.f_code.co_code == forward.co_code
    )  # or a copy of it
    if (comparison := state_values.comparison(self, tx, args, kwargs)) is not None:
        return comparison
    if is_own_question and not _is_differentiated(
        tx.symbolic_locals["self"].realize().value, tx.symbolic_locals["src"]
    ):
        _break("nn.TransformerEncoder, which leaves padded positions out", "make it with enable_nested_tensor=False")
    if self.value in _CHECKING:
        return inside_of(self.value).call_function(tx, args, kwargs)
    if self.value is torch.is_grad_enabled:
        backward_switches.note_question(tx)
    _check_domain(tx, self.value, args)
    if self.value in MATHEMATICS and any(isinstance(a.realize(), SymNodeVariable) for a in args):
        return tx.inline_user_function_return(VariableTracker.build(tx, MATHEMATICS[self.value]), args, kwargs)
    if self.value in _EMBEDDINGS and _has_sparse_gradient(self.value, args, kwargs):
        _break("an embedding with sparse gradients", "make it with sparse=False")
    call, name = functools.partial(original, self, tx, args, kwargs), _name(self.value)
    return _reshape(call, tx, name, args, kwargs) if args and name in CHANGES else call()


def _has_sparse_gradient(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether an embedding of these has one, which no program computes."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    if "sparse" not in arguments or not torch.is_grad_enabled():
        return False
    return bool(arguments["sparse"].realize().as_python_constant() and arguments["weight"].realize().requires_grad)


def _call_method(
    original: Method, self: VariableTracker, tx: Translator, name: str, args: Any, kwargs: Any
) -> VariableTracker:
    call = functools.partial(original, self, tx, name, args, kwargs)
    if name == "item" and assertions.is_branch(tx, self):
        return self
    if name in ("item", "tolist"):
        return items.take_item(call, self, tx, name)
    if name == "requires_grad_" and not kwargs and inner_leaves.is_passed_over(self, [*args, _TRUE][0], tx):
        return self
    return _reshape(call, tx, name, (self, *args), kwargs) if name in CHANGES else call()


def _insert(original: Method, self: VariableTracker, tx: Translator, args: Any, kwargs: object) -> VariableTracker:
    """Dynamo makes the number of a tensor that is an index a constant: of one that has changed twice, not again."""
    if self.fn is operator.getitem:
        items.check_index(tx, args[1].realize())
    return original(self, tx, args, kwargs)


def _call_builtin(original: Method, self: VariableTracker, tx: Translator, args: Any, kwargs: Any) -> VariableTracker:
    """Dynamo's quotient of floats, rounded down, is another than Python's (``1 // 0.2`` is 4): that has constants."""
    if self.fn is operator.not_ and (truth := state_values.answer(tx, operator.not_, *args)) is not None:
        return ConstantVariable.create(truth)
    if self.fn is bool and len(args) == 1 and assertions.is_branch(tx, args[0].realize()):
        return args[0].realize()
    if self.fn is range:
        args = [items.constant(x, tx) if x.is_tensor() else x for x in args]
    function = function_of(self.fn)
    if function not in PARTIAL or not any(isinstance(x, SymNodeVariable) for x in args):
        return original(self, tx, args, kwargs)
    _check_domain(tx, function, args)
    if function is operator.floordiv and torch.SymFloat in [type(_number(x)) for x in args]:
        args = [VariableTracker.build(tx, cached_functions.constant(x)) for x in args]
    if function is operator.pow and is_power_below_zero(*map(_number, args)):
        return tx.inline_user_function_return(VariableTracker.build(tx, power_below_zero), args, kwargs)
    return original(self, tx, args, kwargs)


def _check_domain(tx: Translator, function: object, args: Sequence[VariableTracker]) -> None:
    """Raise, as Python would, for numbers of which a function has no value: Dynamo's symbols have one, NaN say."""
    error = error_of(function, [_number(x.realize()) for x in args])
    if error is not None:
        raise_in_code(error, tx)


def _number(value: VariableTracker) -> object:
    """The number, or its symbol, that a variable stands for; None for anything else."""
    if isinstance(value, SymNodeVariable):
        return value.sym_num
    return value.value if isinstance(value, ConstantVariable) else None


def _reshape(call: Callable[[], Any], tx: Translator, name: str, args: Any, kwargs: Any) -> VariableTracker:
    """The tensor whose shape a call changes, of which Dynamo would keep the shape that it had before.

    Of a view autograd would keep it, too (for what is written later into views of it): a view of that replaces it.
    """
    changed, before = args[0].realize(), args[0].as_proxy().node.meta["example_value"]
    if before._is_view() and before.requires_grad and torch.is_grad_enabled() and _has_one_name(before, tx):
        changed.proxy = changed.call_method(tx, name.removesuffix("_"), list(args[1:]), kwargs).as_proxy()
    else:
        geometry = Geometry.of(before)
        call().as_proxy().node.meta[BEFORE] = geometry
    changed.synchronize_attributes(tx)
    return changed


def _has_one_name(value: torch.Tensor, tx: Translator) -> bool:
    """Is it the result of one call alone, which reads no argument as it is?"""
    nodes = [n for n in tx.output.graph.nodes if n.meta.get("example_value") is value]
    return len(nodes) == 1 and nodes[0].op != "placeholder"


def _name(function: object) -> str:
    """Of a function of torch, or of an operator with or without its overload."""
    return str(getattr(function, "__name__", "")).partition(".")[0]


def _set_attribute(
    original: Method, self: VariableTracker, tx: Translator, owner: Any, name: Any, value: Any
) -> VariableTracker:
    """Dynamo's own call for ``x.data = y`` would say of its tensor that it had the new memory from the beginning."""
    called = name.as_python_constant() if name.is_python_constant() and owner.is_tensor() else None
    if called == "requires_grad" and inner_leaves.is_passed_over(owner, value.realize(), tx):
        return owner
    if called == "data" and value.is_tensor() and len(tx.output.tracers) == 1:
        changed, new = owner.as_proxy(), value.as_proxy()
        if exchanges.is_in_place(changed.node, new.node):
            return owner
        if exchanges.is_alike(changed.node, new.node):
            exchanges.insert(tx.output, changed, new)
            return owner
    return original(self, tx, owner, name, value)


def _call_float(original: Method, self: VariableTracker, tx: Translator, arg: Any) -> VariableTracker:
    """A layer of batch normalization without a momentum makes a number of its counter: a tensor does as well, here."""
    if tx.f_code.co_code != batch_norm_forward.__code__.co_code or not arg.is_tensor():
        return original(self, tx, arg)
    return arg.call_method(tx, "to", [VariableTracker.build(tx, torch.float64)], {})


def _is_differentiated(encoder: nn.TransformerEncoder, source: Any) -> bool:
    """Whether it takes all positions, compiled or not."""
    required = source.realize().requires_grad or any(p.requires_grad for p in encoder.layers[0].parameters())
    return bool(required) and torch.is_grad_enabled()


def _trace_custom_forward(original: Method, self: VariableTracker, tx: Translator, ctx: Any, *args: object) -> object:
    result = original(self, tx, ctx, *args)
    if "materialize_grads" in tx.output.side_effects.store_attr_mutations.get(ctx, ()):
        _break("ctx.set_materialize_grads of a torch.autograd.Function", "test gradients for being zero")
    return result


def _register_hook(original: Method, self: VariableTracker, tx: Translator, name: str, hook: object) -> object:
    """Before 2.13 Dynamo makes an autograd function of it, for which gradients come in other parts."""
    if register_hook_op is None and self.source is None:
        _break("a hook on a tensor that forward computes", "PyTorch 2.13 or newer")
    return backward_switches.trace_backward(original, self, tx, name, hook)


def _handle_exception(original: Method, self: Any, raised: ObservedException) -> None:
    note_exception(self.output, raised, self.f_code)
    original(self, raised)


def _call_skipped(original: Method, self: VariableTracker, tx: Translator, args: Any, kwargs: Any) -> VariableTracker:
    """TorchScript's ``isinstance`` is Python's outside of a script, but for the types of containers' elements."""
    if self.value is constraints.is_dependent:
        dependent = VariableTracker.build(tx, type(constraints.dependent))
        return VariableTracker.build(tx, isinstance).call_function(tx, [*args, dependent], {})
    if self.value is not torch.jit.isinstance or len(args) != 2 or not _names_classes(args[1]):
        return original(self, tx, args, kwargs)
    return VariableTracker.build(tx, isinstance).call_function(tx, list(args), {})


def _names_classes(kind: VariableTracker) -> bool:
    """Is it a class, or a tuple of them? Of containers TorchScript wants to know what they hold."""
    try:
        value = kind.realize().as_python_constant()
    except NotImplementedError:
        return False
    classes = value if isinstance(value, tuple) else (value,)
    return all(isinstance(c, type) and get_origin(c) is None and c not in (list, dict, tuple) for c in classes)


def _note_break(original: Method, self: object, options: object, reason: str, exc: Exception) -> None:
    items.leave_named(str(exc))
    if not getattr(exc, "logged", False) and hasattr(backend := current_backend(), "broke"):
        backend.broke(exc)
    original(self, options, reason, exc)


def _end_in_loop(original: Method, code: object, exc: Exception) -> None:
    """A break in a loop, for which Dynamo gives the frame up."""
    items.leave_named(str(exc))
    original(code, exc)


def _run_node(original: Method, tracer: Any, node: fx.Node, args: Any, kwargs: Any, module: Any) -> object:
    """A call on fake tensors, for what is known of its result."""
    is_whole = node.target in FUNCTIONS and are_of_one_type(args)
    with symbols_kept(tracer.fake_mode), whole_layers() if is_whole else nullcontext():
        call = functools.partial(original, tracer, node, args, kwargs, module)
        result = marks.shape_alike(lambda: note(call, node))
    decided.note(tracer.fake_mode.shape_env)
    return result


def _apply_custom(original: Method, self: object, *args: object, **kwargs: object) -> object:
    """What Dynamo asks of a custom function as a whole."""
    return marks.shape_alike(lambda: original(self, *args, **kwargs))


def _evaluate(original: Method, self: Any, output_graph: object = None) -> object:
    items.leave(current_translator().output, self.sym_num)
    return original(self, output_graph)


def _guard_truth(original: Method, number: torch.SymBool | bool) -> bool:
    """Of ``if n``. Dynamo breaks its graph where a comparison depends on data, and ends where a number does."""
    if not isinstance(number, torch.SymBool):
        return bool(original(number))
    return bool(SymNodeVariable(None, number).evaluate_expr(current_translator().output))


def _is_constant_int(original: Method, value: Any, source: Any) -> bool:
    """Whether an integer of Python stays one in a program after it has changed: those of layers of torch decide about
    code, those of globals do not."""
    if is_of_global(source):
        return False
    return bool(source.guard_source.is_unspecialized_builtin_nn_module() or original(value, source))


def _constant_float(original: Method, self: Any, file: str, line: int) -> float:
    """A number whose value an operator asks for. What it is computed from becomes constant: compared with the result,
    the number computed again would differ by rounding."""
    if self.has_hint() and not self.expr.is_Symbol:
        for symbol in self.expr.free_symbols:
            self.shape_env.evaluate_expr(sympy.Eq(symbol, self.shape_env.backed_var_to_val[symbol]))
        return float(self.hint)
    return float(original(self, file, line))


def _branch(original: Method, self: Any, instruction: Any) -> None:
    """A branch on a value: what a module keeps is known, and one that only raises otherwise is a check."""
    state_values.branch(functools.partial(assertions.branch, original), self, instruction)


def _round(original: Method, self: torch.SymInt, ndigits: int | None = None) -> int:
    """Digits before the point, which symbols do not round, are those of a constant."""
    return original(self, ndigits) if ndigits is None or ndigits >= 0 else round(int(self), ndigits)


_REPLACED: Mapping[str, Method] = {
    "RandomVariable.call_method": _draw,
    "NumpyVariable.call_function": _call_numpy,
    "PyCodegen.__call__": numpy_scalars.load,
    "VariableBuilder.wrap_listlike": _wrap_list,
    "VariableBuilder._wrap": numpy_scalars.wrap,
    "BuiltinVariable.call_isinstance": numpy_scalars.is_instance,
    "BuiltinVariable.call_type": numpy_scalars.class_of,
    "VariableBuilder.wrap_tensor": _wrap_tensor,
    "VariableBuilder.wrap_symfloat": _wrap_float,
    "InferenceModeVariable.enter": _enter_inference_mode,
    "TensorVariable.var_getattr": _attribute_of_tensor,
    "TensorVariable.call_method": _call_method,
    "BuiltinVariable._handle_insert_op_in_graph": _insert,
    "BuiltinVariable.call_function": _call_builtin,
    "SetAttrBuiltinVariable._call_setattr": _set_attribute,
    "BuiltinVariable.call_float": _call_float,
    "TorchInGraphFunctionVariable.call_function": _call_torch,
    "TorchCtxManagerClassVariable.call_function": number_constants.call_context,
    "InstructionTranslatorBase._format_value": number_constants.format_value,
    "InstructionTranslatorBase.exception_handler": _handle_exception,
    "InstructionTranslatorBase.log_graph_break": _note_break,
    "InstructionTranslatorBase.raise_loop_graph_break": _end_in_loop,
    "AutogradFunctionApplyVariable.trace_forward_graph": _trace_custom_forward,
    "AutogradFunctionApplyVariable.trace_backward_graph": backward_switches.trace_backward,
    "CheckpointHigherOrderVariable._call_function": reentrant.call,
    "TensorVariable._method_register_hook": _register_hook,
    "AutogradFunctionVariable.call_apply": backward_switches.call_custom,
    "dynamo_enable_grad": backward_switches.own_switch,
    "GradModeVariable._call_func": backward_switches.switch,
    "WrapperUserFunctionVariable.call_function": cached_functions.call,
    "SkipFunctionVariable.call_function": _call_skipped,
    "LoggingLoggerVariable.call_method": loggers.call,
    "LoggingLoggerVariable.var_getattr": loggers.attribute,
    "run_node": _run_node,
    "AutogradFunctionApply.__call__": _apply_custom,
    "SymNodeVariable.evaluate_expr": _evaluate,
    "is_int_specialization_case": _is_constant_int,
    "SymNode.guard_float": _constant_float,
    "guard_bool": _guard_truth,
    "SymInt.__round__": _round,
    **dict.fromkeys(branches(), _branch),
}
