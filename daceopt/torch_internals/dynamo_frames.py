"""Frames of Python that TorchDynamo compiles: what it is told to do with one, and what it keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import torch

from daceopt.torch_internals.frame_evaluation import is_error_of_dynamo
from daceopt.torch_internals.release import name_if_known, private_names
from daceopt.torch_internals.replacements import exchange

with private_names():
    from torch._dynamo import config as _config
    from torch._dynamo import maybe_mark_dynamic as _mark_dynamic
    from torch._dynamo import optimize as _optimize
    from torch._dynamo.bytecode_transformation import create_call_function as create_call_function
    from torch._dynamo.bytecode_transformation import create_instruction as create_instruction
    from torch._dynamo.bytecode_transformation import transform_code_object as transform_code_object
    from torch._dynamo.cache_size import compute_cache_size as _count_programs
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.convert_frame import output_codes as output_codes
    from torch._dynamo.convert_frame import register_bytecode_hook as register_bytecode_hook
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list, innermost_backend
    from torch._dynamo.exc import InternalTorchDynamoError as InternalTorchDynamoError
    from torch._dynamo.exc import TorchRuntimeError as TorchRuntimeError
    from torch._dynamo.guards import DeletedGuardManagerWrapper, GuardManagerWrapper
    from torch._dynamo.pgo import CodeState as CodeState
    from torch._dynamo.resume_execution import ContinueExecutionCache
    from torch._dynamo.types import (
        ConvertFrameReturn,
        FrameAction,
        FrameExecStrategy,
        GuardedCode,
        wrap_guarded_code,
    )
    from torch._guards import CompileId

    # Since 2.13 Dynamo keeps the programs of one ``optimize`` apart, by a number. Before, it keeps those of all for a
    # code, takes only those of the backend that asks, and counts the others against the limit of its own
    _entries_of_region = name_if_known("torch._dynamo.eval_frame._get_cache_entries_for_region")


def mark_dynamic(tensor: torch.Tensor, axis: int) -> None:
    """Let the size of an axis be a symbol, where code does not make it a constant."""
    _mark_dynamic(tensor, axis)


def leave_frame() -> Any:
    """What tells Dynamo not to compile a frame; it looks at what the frame calls."""
    return ConvertFrameReturn()


def leave_frame_and_calls() -> Any:
    """What tells Dynamo to compile nothing of a frame, nor of what it calls."""
    return ConvertFrameReturn(frame_exec_strategy=_skip_all())


def leave_call() -> Any:
    """What tells Dynamo to run this call of a frame as it is, and all that it calls."""
    return ConvertFrameReturn(_skip_all(), apply_to_code=False)


def run_always(code: CodeType) -> Any:
    """What tells Dynamo to run ``code`` for all calls of a frame."""
    return wrap_guarded_code(GuardedCode(code, GuardManagerWrapper(), CompileId(frame_id=0, frame_compile_id=0)))


def _skip_all() -> Any:
    return FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)


def wrap_conversion(callback: Any, wrap: Callable[[Any], Any]) -> None:
    """Let ``wrap(convert)`` stand in the place of ``convert``, by which a callback of Dynamo's compiles a frame, or
    raises why it does not; Dynamo itself passes over most of what is raised."""
    catching = callback._torchdynamo_orig_backend
    catching._inner_convert = wrap(catching._inner_convert)


def optimize(backend: object, **options: object) -> Any:
    """What compiles a function that it is called with by ``backend``; its programs are nobody else's."""
    return _optimize(backend, **options, **({} if _entries_of_region is None else {"isolate_recompiles": True}))


def is_at_limit(error: Exception) -> bool:
    """Whether Dynamo compiles a frame no more because it has too many programs, which it runs all the same."""
    return getattr(error, "frame_exec_strategy", None) is not None


def region_of(context: Any) -> Any:
    """By what Dynamo tells whose programs those of functions are that ``context``, of ``optimize``, has compiled."""
    return innermost_backend(context.callback) if _entries_of_region is None else context._isolate_recompiles_id


def backend_callable(function: object) -> Any:
    """What a backend has returned for a graph, of Dynamo's function around it; None of other functions."""
    return getattr(function, "_torchdynamo_orig_callable", None)


def function_behind(code: CodeType) -> CodeType | None:
    """The code of the function of which ``code`` is the rest behind a graph break; None where it is none."""
    rest = ContinueExecutionCache.generated_code_metadata.get(code)
    return None if rest is None else rest.code


def programs_of(code: CodeType, region: object) -> list[Any]:
    """What Dynamo keeps for a code: guards and code of each program; ``region``: by what it tells whose they are."""
    if _entries_of_region is None:
        return [entry for entry in _debug_get_cache_entry_list(code) if entry.backend is region]
    return _entries_of_region(code, region)


def counting_own(callback: object) -> AbstractContextManager[None]:
    """A block in which Dynamo counts, against its limit, only those programs of a code that ``callback`` has made."""
    if _entries_of_region is not None:
        return nullcontext()
    return exchange("count of programs", partial(_count_own, innermost_backend(callback)))


def _count_own(region: Any, frame: Any, _: object) -> Any:
    entry = None
    for own in reversed(programs_of(frame.f_code, region)):
        entry = SimpleNamespace(guard_manager=own.guard_manager, next=entry)
    return _count_programs(frame, entry)


def forget_programs(code: CodeType, region: object, reason: str) -> None:
    """Let Dynamo ask again for calls that it has compiled."""
    for entry in programs_of(code, region):
        if entry.guard_manager.extra_state is not None:
            entry.guard_manager.extra_state.invalidate(entry, DeletedGuardManagerWrapper(reason))


@contextmanager
def sizes_in_place(sizes: Mapping[Any, CodeState]) -> Iterator[None]:
    """A block in which Dynamo knows these sizes, by the code that was called with them, in exchange for its own; nobody
    else compiles meanwhile."""
    with compile_lock, exchange("sizes of frames", sizes):
        yield


@contextmanager
def settings_of_frames(most_programs: int) -> Iterator[None]:
    """Dynamo makes at most so many programs of a code, takes recurrent layers, and sees hooks of children that come and
    go. Its guards are not timed, which takes 0.02 s for each frame, half of the time of a small one; nor is what a call
    does before a graph, of which a profiler would be told: that is a fifth of what it takes to enter Dynamo."""
    settings = _config.patch(
        recompile_limit=most_programs,
        allow_rnn=True,
        allow_empty_graphs=True,
        skip_nnmodule_hook_guards=False,
        suppress_errors=False,
        allow_unspec_int_on_nn_module=True,
        record_runtime_overhead=False,
        capture_scalar_outputs=True,  # where a number is read decides (``capture/torch/items.py``)
        capture_dynamic_output_shape_ops=True,  # and where a size is (``capture/torch/cutting.py``)
    )
    with settings, exchange("time of guards", _no_time):
        yield


def _no_time(root: object, scope: object, runs: int) -> float:
    """Microseconds that guards take, which Dynamo reports among its metrics and nothing reads here."""
    return 0.0


def without_open_results() -> AbstractContextManager[None]:
    """A block in which a graph breaks at operators whose results have sizes that only data decide."""
    return _config.patch(capture_dynamic_output_shape_ops=False)


def as_error_of_dynamo(error: Exception) -> Exception:
    """The error itself where it is one of Dynamo's classes; else one of Dynamo's that says the same."""
    if is_error_of_dynamo(error):
        return error
    return InternalTorchDynamoError(f"{type(error).__name__}: {error}")
