"""TorchDynamo while it traces code: its translator, its variables for values, and how its graph ends.

The variables, guards and sources are Dynamo's own types. ``tests/torch_internals`` says which of their attributes
daceopt reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from daceopt.torch_internals.release import name_if_known, private_names

with private_names():
    from torch._dynamo import config as _config
    from torch._dynamo import utils as _utils
    from torch._dynamo.bytecode_transformation import create_instruction as _instruction
    from torch._dynamo.exc import ObservedAttributeError as ObservedAttributeError
    from torch._dynamo.exc import ObservedException as ObservedException
    from torch._dynamo.exc import ObservedLookupError as ObservedLookupError
    from torch._dynamo.exc import ObservedUserStopIteration as ObservedUserStopIteration
    from torch._dynamo.exc import RestartAnalysis as RestartAnalysis
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis, raise_observed_exception, unimplemented
    from torch._dynamo.symbolic_convert import InstructionTranslator as Translator
    from torch._dynamo.symbolic_convert import TensorifyState
    from torch._dynamo.utils import ExactWeakKeyDictionary as ExactWeakKeyDictionary
    from torch._dynamo.utils import counters as _counters
    from torch._dynamo.variables import higher_order_ops as _higher_order
    from torch._dynamo.variables.base import VariableTracker as VariableTracker
    from torch._dynamo.variables.builtin import IN_PLACE_DESUGARING_MAP as _IN_PLACE
    from torch._dynamo.variables.constant import ConstantVariable as ConstantVariable
    from torch._dynamo.variables.functions import UserFunctionVariable as _UserFunction
    from torch._dynamo.variables.lazy import LazySymNodeFormatString as LazySymNodeFormatString
    from torch._dynamo.variables.lazy import LazyVariableTracker as LazyVariableTracker
    from torch._dynamo.variables.lists import BaseListVariable as BaseListVariable
    from torch._dynamo.variables.tensor import NumpyNdarrayVariable as NumpyNdarrayVariable
    from torch._dynamo.variables.tensor import SymNodeVariable as SymNodeVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable as UserDefinedObjectVariable

    # Before 2.13 Dynamo warns of each such function
    _is_cache_passed_over = name_if_known("torch._dynamo.utils.is_lru_cache_wrapper_trace_without_warning_allowed")

    _current = Translator.current_tx


def current_translator() -> Any:
    """What translates instructions in this thread; None where Dynamo traces nothing in it."""
    try:
        return _current()
    except AttributeError:
        return None


def current_backend() -> Any:
    """The backend for which Dynamo traces in this thread, as it was handed to Dynamo; None where it traces nothing."""
    translator = current_translator()
    backend: Any = None if translator is None else translator.output.compiler_fn
    for name in ("_torchdynamo_orig_backend", "compiler_fn"):
        backend = getattr(backend, name, backend)
    return backend


def break_graph(reason: str, explanation: str, hints: Sequence[str] = ()) -> NoReturn:
    """End Dynamo's graph before the instruction that it is at."""
    raise unimplemented(gb_type=reason, context="", explanation=explanation, hints=[*hints])


def numpy_call(target: object) -> tuple[str, str]:
    """What a node of Dynamo's graph calls of NumPy, ``function``, ``method`` or ``operator``, and its name; empty where
    it is another call."""
    if isinstance(target, _utils.numpy_to_tensor_wrapper):
        return "function", target.f.__name__
    if isinstance(target, _utils.numpy_method_wrapper):
        return "method", target.method
    return ("operator", target.op.__name__) if isinstance(target, _utils.numpy_operator_wrapper) else ("", "")


def subscript_with(codegen: Any, index: object) -> None:
    """Let the code that Dynamo writes replace what it has loaded last, ``x``, by ``x[index]``."""
    codegen.extend_output([codegen.create_load_const(index), _instruction("BINARY_SUBSCR")])


def restart_tracing() -> NoReturn:
    """Let Dynamo trace the frame from its beginning; what was noted meanwhile stays."""
    raise TensorifyScalarRestartAnalysis


def raise_in_code(error: Exception, translator: object) -> NoReturn:
    """Raise an error where the code that Dynamo traces may catch it."""
    raise raise_observed_exception(type(error), translator, args=[str(error)])


def make_constant(symbol: str) -> None:
    """Let a number of the frame be a constant in its next trace."""
    TensorifyState.specialize(symbol)


def forget_constants() -> None:
    """What ``make_constant`` has said is of one frame: in other code the numbers are none."""
    TensorifyState.clear()


def is_traced_without_cache(function: Callable[..., Any]) -> bool:
    """Whether a function has a cache that Dynamo leaves out of its graphs without a word."""
    return _is_cache_passed_over is not None and bool(_is_cache_passed_over(function))


def frame_count() -> int:
    """How many frames Dynamo has looked at in this process."""
    return int(_counters["frames"]["total"])


def settings(**values: object) -> AbstractContextManager[None]:
    """A block in which Dynamo has other settings (``torch._dynamo.config``)."""
    return _config.patch(**values)


def inside_of(function: Callable[..., Any]) -> VariableTracker:
    """A function of PyTorch whose code Dynamo is to trace, where it would be one call."""
    return _UserFunction(function)


def switch_gradients(translator: object, enabled: bool) -> AbstractContextManager[None]:
    """A block whose calls Dynamo traces with gradients on or off."""
    return _higher_order.dynamo_enable_grad(translator, enabled)


def function_of(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator without its assignment: ``operator.add`` of ``operator.iadd``; others themselves."""
    return _IN_PLACE.get(operator, operator)
