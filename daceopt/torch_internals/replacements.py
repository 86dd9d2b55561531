"""Functions of PyTorch that daceopt replaces: all of them are in one table, and are replaced in one way."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from daceopt.torch_internals.release import name_if_known, private_names

Function = Callable[..., Any]

REPLACED = {
    "RandomVariable.call_method": ("torch._dynamo.variables.misc", "self tx name args kwargs"),
    "NumpyVariable.call_function": ("torch._dynamo.variables.misc", "self tx args kwargs"),
    "PyCodegen.__call__": ("torch._dynamo.codegen", "self value allow_cache"),
    "VariableBuilder.wrap_listlike": ("torch._dynamo.variables.builder", "self value"),
    "VariableBuilder._wrap": ("torch._dynamo.variables.builder", "self value"),
    "BuiltinVariable.call_isinstance": ("torch._dynamo.variables.builtin", "self tx arg isinstance_type_var"),
    "BuiltinVariable.call_type": ("torch._dynamo.variables.builtin", "self tx obj"),
    "VariableBuilder.wrap_tensor": ("torch._dynamo.variables.builder", "self value"),
    "VariableBuilder.wrap_symfloat": ("torch._dynamo.variables.builder", "self value"),
    "InferenceModeVariable.enter": ("torch._dynamo.variables.ctx_manager", "self tx"),
    "TensorVariable.var_getattr": ("torch._dynamo.variables.tensor", "self tx name"),
    "TensorVariable.call_method": ("torch._dynamo.variables.tensor", "self tx name args kwargs"),
    "BuiltinVariable._handle_insert_op_in_graph": ("torch._dynamo.variables.builtin", "self tx args kwargs"),
    "BuiltinVariable.call_function": ("torch._dynamo.variables.builtin", "self tx args kwargs"),
    "SetAttrBuiltinVariable._call_setattr": ("torch._dynamo.variables.builtin", "self tx obj name_var val"),
    "BuiltinVariable.call_float": ("torch._dynamo.variables.builtin", "self tx arg"),
    "TorchInGraphFunctionVariable.call_function": ("torch._dynamo.variables.torch", "self tx args kwargs"),
    "TorchCtxManagerClassVariable.call_function": ("torch._dynamo.variables.torch", "self tx args kwargs"),
    "InstructionTranslatorBase._format_value": ("torch._dynamo.symbolic_convert", "self fmt_spec flags"),
    "InstructionTranslatorBase.exception_handler": ("torch._dynamo.symbolic_convert", "self raised_exception"),
    "InstructionTranslatorBase.log_graph_break": ("torch._dynamo.symbolic_convert", "self code_options reason exc"),
    "InstructionTranslatorBase.raise_loop_graph_break": ("torch._dynamo.symbolic_convert", "code exc"),
    "AutogradFunctionApplyVariable.trace_forward_graph": (
        "torch._dynamo.variables.higher_order_ops",
        "self tx ctx fwd_tracer args kwargs",
    ),
    "AutogradFunctionApplyVariable.trace_backward_graph": (
        "torch._dynamo.variables.higher_order_ops",
        "self tx ctx fwd_tracer fwd_out fwd_fn",
    ),
    "CheckpointHigherOrderVariable._call_function": ("torch._dynamo.variables.higher_order_ops", "self tx args kwargs"),
    "TensorVariable._method_register_hook": ("torch._dynamo.variables.tensor", "self tx name hook"),
    "AutogradFunctionVariable.call_apply": ("torch._dynamo.variables.misc", "self tx args kwargs"),
    "dynamo_enable_grad": ("torch._dynamo.variables.higher_order_ops", "tx enable"),
    "GradModeVariable._call_func": ("torch._dynamo.variables.ctx_manager", "self tx values"),
    "WrapperUserFunctionVariable.call_function": ("torch._dynamo.variables.functions", "self tx args kwargs"),
    "SkipFunctionVariable.call_function": ("torch._dynamo.variables.functions", "self tx args kwargs"),
    "LoggingLoggerVariable.call_method": ("torch._dynamo.variables.misc", "self tx name args kwargs"),
    "LoggingLoggerVariable.var_getattr": ("torch._dynamo.variables.misc", "self tx name"),
    "run_node": ("torch._dynamo.utils", "tracer node args kwargs nnmodule"),
    "AutogradFunctionApply.__call__": ("torch._functorch.autograd_function", "self fwd bwd *fwd_args **fwd_kwargs"),
    "SymNodeVariable.evaluate_expr": ("torch._dynamo.variables.tensor", "self output_graph"),
    "is_int_specialization_case": ("torch._dynamo.variables.builder", "value source"),
    "SymNode.guard_float": ("torch.fx.experimental.sym_node", "self file line"),
    "guard_bool": ("torch._dynamo.symbolic_convert", "a"),
    "canonicalize_bool_expr": ("torch.fx.experimental.symbolic_shapes", "expr"),
    "SymInt.__round__": ("torch", "self ndigits"),
    "InstructionTranslatorBase.*": ("torch._dynamo.symbolic_convert", "self inst"),
    "proxy_call": ("torch.fx.experimental.proxy_tensor", "proxy_mode func pre_dispatch args kwargs"),
    "make_stub_from_method": ("torch.jit._recursive", "nn_module method_name"),
}
"""A function, or a method and its class: the module that has it, and its parameters. ``*``: all branches."""

RENAMED = {
    "TensorVariable.var_getattr": "TensorVariable.tp_getattro_impl",  # since 2.14
    "LoggingLoggerVariable.var_getattr": "LoggingLoggerVariable.tp_getattro_impl",
    "SetAttrBuiltinVariable._call_setattr": "BuiltinVariable.call_setattr",  # before 2.13
}
"""What other releases call functions of ``REPLACED``, in the same module."""

EXCHANGED = {
    "sizes of frames": ("torch._dynamo.pgo", "_CODE_STATE"),
    "time of guards": ("torch._dynamo.guards", "profile_guard_manager"),
    "count of programs": ("torch._dynamo.convert_frame", "compute_cache_size"),
}
"""What has another value while Dynamo looks at a frame of ours: the module, and its name there."""

_lock = threading.Lock()
_layers: set[tuple[str, Function]] = set()


def replace(name: str, function: Function, when: Callable[[], bool] | None = None) -> None:
    """Let ``function(original, *arguments)`` answer calls of ``REPLACED[name]``, from now on and in all threads; those
    for which ``when()`` is false reach the original. Does nothing where that is done already; another function for the
    same name is called before the first, which is its original.
    """
    owner, attribute = owner_of(name)
    with _lock:
        if (name, function) in _layers:
            return
        original, definition = getattr(owner, attribute), inspect.getattr_static(owner, attribute)
        layer = _layer(original, function, when)
        setattr(owner, attribute, staticmethod(layer) if isinstance(definition, staticmethod) else layer)
        _layers.add((name, function))


def owner_of(name: str) -> tuple[Any, str]:
    """The module or class that has ``REPLACED[name]``, and how it is called there. Raises PyTorchChanged if it is
    missing."""
    module, _ = REPLACED.get(name) or REPLACED[f"{name.rpartition('.')[0]}.*"]
    if name in RENAMED and name_if_known(f"{module}.{name}") is None:
        name = RENAMED[name]
    path, _, attribute = name.rpartition(".")
    with private_names():
        owner: Any = import_module(module)
        owner = getattr(owner, path) if path else owner
        getattr(owner, attribute)
    return owner, attribute


def _layer(original: Function, function: Function, when: Callable[[], bool] | None) -> Function:
    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:
        if when is None or when():
            return function(original, *args, **kwargs)
        return original(*args, **kwargs)

    return call


def branches() -> list[str]:
    """The instructions of Python that branch on a value, as names for ``replace``."""
    with private_names():
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator
    names = [k for k, m in vars(Translator).items() if getattr(m, "__qualname__", "").startswith("generic_jump.")]
    return [f"{Translator.__name__}.{name}" for name in names]


def renew_tables() -> None:
    """Let Dynamo's tables of methods, by type of value, by builtin and by instruction, hold the present ones."""
    with private_names():
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase
        from torch._dynamo.variables.builder import VariableBuilder
        from torch._dynamo.variables.builtin import BuiltinVariable

        VariableBuilder._type_dispatch_impl.cache_clear()
        BuiltinVariable.call_function_handler_cache.clear()
    _renew_instructions(InstructionTranslatorBase)


def _renew_instructions(cls: Any) -> None:
    """Of a translator, and of those derived from it: their metaclass fills the table when it makes the class."""
    type(cls).__init__(cls, cls.__name__, cls.__bases__, {})
    for derived in cls.__subclasses__():
        _renew_instructions(derived)


@contextmanager
def exchange(name: str, value: object) -> Iterator[None]:
    """A block in which ``EXCHANGED[name]`` is ``value`` for the whole process; only one thread at a time may enter."""
    module, attribute = EXCHANGED[name]
    with private_names():
        owner = import_module(module)
        before = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, before)
