"""Runs the calls of an optimized module through TorchDynamo with our backend, and keeps account of what ran how."""

from __future__ import annotations

import logging
import math
import re
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.compiler import is_compiling

from daceopt.capture.torch.dynamic import mark
from daceopt.errors import WRONG_CALL, CaptureError, DaceoptError, FallbackWarning, MemoryBudgetError
from daceopt.logs import caller_depth
from daceopt.modules import breaks, options
from daceopt.modules.breaks import Break, SourceLine
from daceopt.modules.call_times import ENTRY
from daceopt.modules.options import Options
from daceopt.modules.small_calls import SmallCalls, key_of
from daceopt.modules.structure import structure
from daceopt.programs.stats import Stats
from daceopt.torch_internals import autograd_engine, functorch, modes
from daceopt.torch_internals.frame_evaluation import is_error_of_dynamo
from daceopt.torch_internals.modes import has_global_module_hook
from daceopt.torch_internals.pytree import tree_map_only

if TYPE_CHECKING:
    from daceopt.modules.backend import Backend
    from daceopt.modules.fast_path import CompiledForward
    from daceopt.modules.piece import CompiledPiece

logger = logging.getLogger("daceopt.dispatch")

Forward = Callable[..., Any]


class Dispatcher:
    """The compiled side of one module. Copies and pickles carry the options only and compile anew."""

    is_alone = True  # whether nobody calls the module again where a call of it raises that it cannot be compiled

    def __init__(self, options: Options, owner: nn.Module | None = None) -> None:
        self.options = options
        self.owner = weakref.ref(owner) if owner is not None else None
        self.stats = Stats()
        self.reasons = self.stats.fallbacks
        self.breaks: dict[str, Break] = {}  # by the text that ``reasons`` counts, those that were raised as well
        self._compiled: CompiledForward | None = None
        self._name = ""  # of the module's class, for messages
        self._beyond: MemoryBudgetError | None = None
        self._has_settled = False  # whether its first call, which may install something in it, has been looked at
        self._changes: Counter[str] = Counter()  # what was compared when Dynamo looked at the code again
        self._changed: dict[str, str] = {}  # what did not hold there, the latest
        self._small = SmallCalls()
        self._lock = threading.RLock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Dispatcher:
        return Dispatcher(self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dispatcher, (self.options,)

    @property
    def graphs(self) -> list[CompiledPiece]:
        """What was compiled so far, the latest last."""
        return [] if self._compiled is None else self._compiled.backend.graphs

    def call(self, module: nn.Module, original: Forward, args: tuple[object, ...], kwargs: dict[str, Any]) -> object:
        """Run ``original(module, *args, **kwargs)``, the module's own forward, compiled if possible."""
        if self._small.known and not is_compiling():
            pieces = self._small.cover(original, module, args, kwargs)
            if pieces:
                self.stats.count_small(pieces)
                return original(module, *args, **kwargs)
        if is_transformed():
            return original(module, *args, **kwargs)
        self.stats.calls += 1
        if has_global_module_hook():
            reason = breaks.to_break("hooks of all modules are registered", breaks.WHOLE)
            return self._eagerly(module, original, args, kwargs, reason)
        if modes.function_mode_count() and (mode := strange_mode()):
            reason = breaks.to_break(f"a mode of functions is active ({mode})", breaks.WHOLE)
            return self._eagerly(module, original, args, kwargs, reason)
        compiled = self._compiled
        if compiled is None or not compiled.is_of(original):
            self._name = type(module).__name__
            compiled = self._compile(original)
        if self.options.dynamic.__class__ is dict:
            self._mark(original.__get__(module), args, kwargs)
        backward = self.options.backward
        if backward is None:
            return self._noting_small(compiled, module, args, kwargs)
        if torch.is_grad_enabled() is backward:
            return self._run(compiled, module, args, kwargs)
        with torch.set_grad_enabled(backward):
            result = self._run(compiled, module, args, kwargs)
        return tree_map_only(torch.Tensor, torch.Tensor.detach, result) if backward else result

    def _noting_small(
        self, compiled: CompiledForward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run a call; where all of it stays in eager PyTorch by choice, calls like it run as they are written from now
        on, without guards."""
        if compiled.broken:
            return self._weighing(compiled, module, args, kwargs)
        stats, ran = self.stats, compiled.backend.ran
        chosen, refused = stats.chosen_pieces, stats.eager_pieces - stats.chosen_pieces
        result = self._run(compiled, module, args, kwargs)
        pieces = stats.chosen_pieces - chosen
        if pieces and stats.eager_pieces - stats.chosen_pieces == refused and compiled.backend.ran == ran:
            self._small.add(key_of(compiled.original, module, args, kwargs), pieces)
        return result

    def _weighing(
        self, compiled: CompiledForward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        """The same for a frame that breaks: where what is compiled of it saves less than it costs to enter Dynamo for
        each piece of the frame. That is counted in one call, behind one in which nothing was compiled."""
        stats, backend = self.stats, compiled.backend
        chosen, refused = stats.chosen_pieces, stats.eager_pieces - stats.chosen_pieces
        ran, frames = backend.ran, backend.frames()
        backend.is_weighed, backend.gained = True, 0.0
        key = key_of(compiled.original, module, args, kwargs)
        with compiled.count_entries() if self._small.is_due(key) else nullcontext() as entries:
            result = self._run(compiled, module, args, kwargs)
        pieces = backend.ran - ran + stats.chosen_pieces - chosen
        is_settled = backend.frames() == frames and stats.eager_pieces - stats.chosen_pieces == refused
        if is_settled and pieces and backend.gained < math.inf:
            self._small.weigh(key)
            entered = -math.inf if entries is None else ENTRY * entries.count
            if backend.gained < entered and self._small.add(key, pieces):
                self._note_choice(backend.gained, entered)
        return result

    def _note_choice(self, gained: float, entered: float) -> None:
        choice = (
            f"eager PyTorch, by the cost model: programs save at most {max(gained, 0.0):.1f} us, to enter Dynamo for "
            f"each piece takes {entered:.1f} us"
        )
        if choice not in self.stats.choices:
            self.stats.choices.append(choice)

    def _run(
        self, compiled: CompiledForward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        program = compiled.find((module, *args), kwargs)
        if program is None and compiled.broken:
            return self._through_dynamo(compiled, module, args, kwargs)
        if program is None:
            with self._lock:  # while one thread compiles, the others wait for what it makes
                program = compiled.find((module, *args), kwargs)
                if program is None:
                    return self._through_dynamo(compiled, module, args, kwargs)
        eager = self.stats.eager_pieces
        failure: Exception | None = None
        try:
            result = program(module, *args, **kwargs)
        except Exception as error:
            if not is_wrong_call(error):
                raise
            failure = error
        if failure is not None:
            return self._again(failure, compiled.original, module, args, kwargs)
        if self.stats.eager_pieces != eager:  # the only piece of the call
            self.stats.eager_calls += 1
        return result

    def _through_dynamo(
        self, compiled: CompiledForward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        backend = compiled.backend
        ran, frames, eager = backend.ran, backend.frames(), self.stats.eager_pieces
        before = None if self._has_settled else structure(module)
        failure: Exception | None = None
        try:
            result = compiled.run(module, *args, **kwargs)
        except Exception as error:
            backend.drop_breaks()  # what broke the graph is the error itself
            if backend.frames() != frames:
                self._forget(compiled)
            # where a program has run before, the model's own code would change a second time what that has changed
            is_wrong = is_wrong_call(error) and backend.ran == ran
            if not (is_wrong or is_error_of_dynamo(error)):
                raise
            failure = error
        if failure is not None:  # out of the block: the error that eager PyTorch has does not come from it
            return self._after(failure, compiled.original, module, args, kwargs)
        if self._beyond is not None:
            beyond, self._beyond = self._beyond, None
            self._forget(compiled)
            raise beyond
        if backend.frames() != frames or not compiled.broken:
            compiled.refresh(is_whole=not backend.is_broken(compiled.code))
        if backend.frames() != frames:
            if self._settles(module, before) and backend.drop_breaks():
                self._forget(compiled)
                return result
            self._note_breaks(backend)
        elif backend.ran == ran:
            count = partial(self.stats.count_eager, self.stats.eager_pieces - eager)
            compiled.settle((module, *args), kwargs, count)
        if backend.ran == ran:
            is_known = self.stats.eager_pieces != eager or bool(self.reasons)
            if is_known or compiled.find((module, *args), kwargs) is None:
                self._note_eager(compiled, is_known)  # else it was compiled, and computes nothing
        return result

    def _after(
        self,
        failure: Exception,
        original: Forward,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
    ) -> object:
        """What a call gives that Dynamo fails at; of a wrong call, the error that eager PyTorch has for it."""
        if is_wrong_call(failure):
            return self._again(failure, original, module, args, kwargs)
        logger.debug("%s", first_line(failure), exc_info=failure)
        if self.options.fallback != "raise":
            return self._eagerly(module, original, args, kwargs, breaks.of_error(failure, breaks.WHOLE))
        if self.is_alone:
            before = None if self._has_settled else structure(module)
            result = original(module, *args, **kwargs)
            if self._settles(module, before):
                self.stats.eager_calls += 1
                return result
        raise self._translate(module, failure).with_traceback(None) from None

    def _again(
        self, failure: Exception, original: Forward, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> object:
        """What eager PyTorch gives, or raises, for a call whose program has failed and changed nothing."""
        result, reason = original(module, *args, **kwargs), breaks.of_error(failure, breaks.WHOLE)
        self._note(reason)
        if self.options.fallback == "raise":
            raise breaks.as_error(reason, failure).with_traceback(None) from None
        self.stats.eager_calls += 1
        return result

    def _settles(self, module: nn.Module, before: object) -> bool:
        """Whether the first call installed something in the model, whose structure was ``before``: what did not compile
        may do so now."""
        self._has_settled = True
        return before is not None and structure(module) != before

    def _eagerly(
        self, module: nn.Module, original: Forward, args: tuple[object, ...], kwargs: dict[str, Any], reason: Break
    ) -> object:
        self._name = type(module).__name__
        if self.options.fallback == "raise":
            self._note(reason)
            raise breaks.with_place(CaptureError(f"{self._name} cannot be compiled: {reason.reason}"), reason)
        result = original(module, *args, **kwargs)
        self._note(reason)
        self.stats.eager_calls += 1
        return result

    def _mark(self, forward: Forward, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        try:
            mark(self.options.dynamic, forward, args, kwargs)
        except CaptureError as error:
            if self.options.fallback == "raise":
                raise
            self._note(breaks.to_break(f"sizes are taken as they come: {error}", "where they change"))

    def _compile(self, original: Forward) -> CompiledForward:
        from daceopt.modules.fast_path import CompiledForward

        with self._lock:
            if self._compiled is None or not self._compiled.is_of(original):
                self._compiled = CompiledForward(
                    original,
                    self._backend() if self._compiled is None else self._compiled.backend,
                    nopython=self.options.fallback == "raise",
                    dynamic=self.options.dynamic if isinstance(self.options.dynamic, bool) else None,
                    guard_fail_fn=self._note_change,
                )
                self._compiled.backend.entry = self._compiled.code
            return self._compiled

    def _backend(self) -> Backend:
        """What compiles the graphs of the module."""
        from daceopt.modules.backend import Backend

        return Backend(self.options, self.stats, self._refuse)

    def _forget(self, compiled: CompiledForward) -> None:
        """The next call brings code of its own."""
        compiled.is_stale = True

    # ---------------------------------------------------------------- what did not compile

    def _refuse(self, reason: Break, error: BaseException) -> None:
        """A graph stays in eager PyTorch."""
        if self.options.fallback == "raise":
            self._note(reason)
            raise breaks.as_error(reason, error)
        if isinstance(error, MemoryBudgetError):
            self._beyond = error  # eager PyTorch would not stay within the budget either: the call raises
        else:
            self._note(reason)

    def _translate(self, module: nn.Module, error: BaseException) -> BaseException:
        """Dynamo's errors as ours."""
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, DaceoptError):
            return inner
        reason = breaks.of_error(error, breaks.WHOLE)
        self._note(reason)
        return breaks.with_place(
            CaptureError(f"{type(module).__name__} cannot be compiled as a whole: {reason.reason}"), reason
        )

    def _note_change(self, failure: Any) -> None:
        logger.info("looked at again, because %s", str(failure.reason).splitlines()[0])
        condition = _condition(failure.reason)
        subject = condition.partition(" == ")[0].partition(" expected ")[0]
        self._changes[subject] += 1
        self._changed[subject] = condition

    def _note_breaks(self, backend: Backend) -> None:
        for reason in backend.new_breaks():
            self._note(self._limit(reason) if "recompile limit" in reason.said else reason)

    def _note_eager(self, compiled: CompiledForward, is_known: bool) -> None:
        self.stats.eager_calls += 1
        if not is_known:
            reason = Break("nothing in it was compiled", breaks.WHOLE)
            self._note(self._limit(reason) if compiled.count >= options.RECOMPILE_LIMIT else reason)

    def _limit(self, reason_before: Break) -> Break:
        """What is said where there are too many programs."""
        most = self._changes.most_common(1)
        condition = self._changed[most[0][0]] if most else "what they were compiled for"
        reason = f"it has {options.RECOMPILE_LIMIT} programs already; most often, this did not hold: {condition}"
        return replace(reason_before, reason=reason, part=_OTHER_CALLS, instead=_FEWER)

    def _note(self, reason: Break) -> None:
        self.breaks.setdefault(reason.text, reason)
        if self.options.fallback != "raise":
            note(self.reasons, reason.text, f"{self._name} {reason}", self.options.fallback, reason.place)


_OTHER_CALLS = "in the calls that none of its programs is for"
_FEWER = (
    "pad to few lengths, stack lists of tensors, and compute over time with operators on whole tensors: each length of"
    " a list or of a loop of Python, and each value that decides about code, is a program"
)


def _condition(reason: object) -> str:
    """What a guard of Dynamo's compared, without its number and the code that it stands for."""
    return re.split(r"\s+# ", re.sub(r"^\d+/\d+: ", "", str(reason).splitlines()[0]))[0].strip()


def note(reasons: dict[str, int], reason: str, message: str, fallback: str, place: SourceLine | None = None) -> None:
    """Count ``reason``; at the first time give the message, as one about a line of the model where that is known."""
    count = reasons.get(reason, 0)
    reasons[reason] = count + 1
    if count:
        return
    logger.info("%s", message)
    if fallback == "warn" and place is not None and place.is_users:
        warnings.warn_explicit(message, FallbackWarning, place.file, place.line)
    elif fallback == "warn":
        warnings.warn(message, FallbackWarning, stacklevel=caller_depth())


def first_line(error: BaseException) -> str:
    """What a long message of Dynamo says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def is_wrong_call(error: BaseException) -> bool:
    """Whether eager PyTorch raised this, too, where a compiled piece ran again in it and changed nothing."""
    return getattr(error, WRONG_CALL, False)


def strange_mode() -> str:
    """The class of an active ``TorchFunctionMode`` that would see what a program does in place of the model's calls; a
    default device is none."""
    return next((type(mode).__name__ for mode in modes.function_modes()), "")


def is_transformed() -> bool:
    """Whether something else is looking at the call: a compiler, an exporter, a tracer, functorch, or a tensor-mode."""
    return (
        torch.compiler.is_compiling()
        or functorch.innermost_transform() is not None
        or modes.operator_mode_count() > 0
        or modes.jit_trace() is not None
        or autograd_engine.is_forward_differentiated()
    )
