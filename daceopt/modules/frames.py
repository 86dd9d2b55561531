"""How Dynamo compiles the code of an optimized module: a copy of it, and settings that hold only while it looks."""

from __future__ import annotations

import logging
import os
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from daceopt.capture.torch import decided
from daceopt.capture.torch.collection import pause
from daceopt.errors import DaceoptError
from daceopt.torch_internals import functorch
from daceopt.torch_internals.logger_names import HANDLERS

if TYPE_CHECKING:
    from daceopt.modules.frame_parts import Parts

Function = Callable[..., Any]

RECOMPILE_LIMIT = 32
"""Programs of one piece of code in one module, beyond which calls that fit none of them run eagerly."""

_NOISE = (
    "The .grad attribute of a Tensor that is not a leaf",
    "<class '[^']*'> should not be instantiated",  # it makes instances of the user's autograd functions
)
"""How warnings about what Dynamo itself does begin, as regular expressions; its own modules give advice on it."""

_SPOKEN = (str(Path(logging.__file__).parent) + os.sep, warnings.__file__)
"""What is said behind a graph break is no part of a model: nothing of it is compiled."""


class Listener(Protocol):
    """A backend of Dynamo's that hears when Dynamo begins with a piece of code, or does so again, why it compiles
    nothing of it, and that it goes on with the parts of that."""

    def begins(self, code: types.CodeType) -> None: ...

    def begins_again(self) -> None: ...

    def on_failure(self, error: BaseException) -> None: ...

    def goes_on(self) -> None: ...


def compile_frames(function: Function, backend: Any, seen: SeenSizes | None = None, **options: Any) -> Any:
    """``function``, which Dynamo compiles with ``backend`` when it is called; programs are shared with nobody, nor is
    which sizes vary, unless ``seen`` is. Its ``region`` says to Dynamo whose programs are meant."""
    from daceopt.modules.frame_parts import Parts
    from daceopt.torch_internals.dynamo_frames import optimize, region_of

    context = optimize(backend, **options)
    parts = Parts()
    context.callback = FrameCompiler(context.callback, parts, None if options.get("nopython") else backend, seen)
    compiled = context(function)
    parts.region = compiled.region = region_of(context)
    return compiled


class FrameCompiler:
    """Dynamo's callback for a frame that has no program for a call yet; what has one never comes here.

    Where Dynamo fails, the frame runs as it is, and ``listener`` hears why; without one the error is raised.
    """

    def __init__(
        self, callback: Function, parts: Parts, listener: Listener | None = None, seen: SeenSizes | None = None
    ) -> None:
        from daceopt.torch_internals.dynamo_frames import wrap_conversion

        self._torchdynamo_orig_backend = callback  # by which Dynamo finds whose programs these are
        self._parts = parts
        self._listener = listener
        self._outcome = _Outcome()
        if listener is not None:
            wrap_conversion(callback, lambda convert: _Told(convert, listener, self._outcome))
        self._seen = seen or SeenSizes()

    def __call__(self, frame: Any, *args: Any) -> Any:
        from daceopt.torch_internals.dynamo_frames import leave_call, leave_frame_and_calls

        code = frame.f_code
        if _is_transformed(code):
            return leave_call()
        if code.co_filename.startswith(_SPOKEN):
            return leave_frame_and_calls()
        known = self._parts.of(code)
        if known is not None:
            return known
        answer, has_given_up = self._convert(frame, *args)
        split = self._parts.split(code, answer) if has_given_up else None
        if split is None:
            return answer
        if self._listener is not None:
            self._listener.goes_on()
        return split

    def _convert(self, frame: Any, *args: Any) -> tuple[Any, bool]:
        """What Dynamo is to do with the frame, and whether that is nothing because of what is in it."""
        from daceopt.torch_internals.dynamo_frames import as_error_of_dynamo, counting_own
        from daceopt.torch_internals.dynamo_tracing import forget_constants

        with self._seen.in_place(), counting_own(self), warnings.catch_warnings(), _settings(), pause():
            for noise in _NOISE:
                warnings.filterwarnings("ignore", noise)
            warnings.filterwarnings("ignore", module=r"torch\._(dynamo|functorch|subclasses)\.")
            try:
                return self._trace(frame, *args), self._outcome.has_given_up
            except Exception as error:
                if self._listener is None:
                    named = error if isinstance(error, DaceoptError | Warning) else as_error_of_dynamo(error)
                    if named is error:  # no error is its own cause: who follows causes would not come back
                        raise
                    raise named from error
                return _as_it_is(error), False
            finally:
                forget_constants()  # which numbers are constants in this code: in other code they are not

    def _trace(self, frame: Any, *args: Any) -> Any:
        """Sizes that only the data decide are in the graph; where that fails, it breaks at what decides them."""
        from daceopt.torch_internals.dynamo_frames import without_open_results

        with decided.watch() as sizes:
            try:
                return self._torchdynamo_orig_backend(frame, *args)
            except Exception:
                if not sizes.any:
                    raise
        if self._listener is not None:
            self._listener.begins_again()
        with without_open_results():
            return self._torchdynamo_orig_backend(frame, *args)


class _Outcome:
    """Of the last frame that was tried: whether Dynamo compiles nothing of it because of what is in it."""

    has_given_up = False


class _Told:
    """What compiles a frame in Dynamo, or raises why not; ``listener`` hears of it, and ``outcome`` keeps it."""

    def __init__(self, convert: Function, listener: Listener, outcome: _Outcome) -> None:
        self._convert, self._listener, self._outcome = convert, listener, outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        from daceopt.torch_internals.dynamo_frames import is_at_limit

        self._listener.begins(frame.f_code)
        try:
            answer = self._convert(frame, *args, **kwargs)
        except Exception as error:
            self._outcome.has_given_up = not is_at_limit(error)
            self._listener.on_failure(error)
            raise
        self._outcome.has_given_up = False
        return answer


class SeenSizes:
    """Which sizes one module's frames were called with, by which Dynamo tells those that vary.

    Dynamo itself keeps them for each line of code in the process: another instance of a class, with sizes of its own,
    would have open sizes in its first program already.
    """

    def __init__(self) -> None:
        self._states: Any = defaultdict(_nothing_seen)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Dynamo's in exchange for these; nobody else compiles meanwhile."""
        from daceopt.torch_internals.dynamo_frames import sizes_in_place

        with sizes_in_place(self._states):
            yield


def _nothing_seen() -> Any:
    from daceopt.torch_internals.dynamo_frames import CodeState

    return CodeState()


def _as_it_is(error: Exception) -> Any:
    """What tells Dynamo not to compile a frame.

    Where an operator failed as it was traced, nothing that the frame calls is compiled either: a model may ask whether
    it is compiled and do something else, which must not meet in one call with what it does if it is not.
    """
    from daceopt.torch_internals.dynamo_frames import TorchRuntimeError, leave_frame, leave_frame_and_calls

    return leave_frame_and_calls() if isinstance(error, TorchRuntimeError) else leave_frame()


def _is_transformed(code: types.CodeType) -> bool:
    """Whether a transform of ``torch.func`` calls the frame, or is it: a graph of it would mean something else."""
    return functorch.innermost_transform() is not None or code.co_filename.startswith(functorch.FOLDER)


@contextmanager
def _settings() -> Iterator[None]:
    """Dynamo's for frames; what it says is not shown."""
    from daceopt.torch_internals.dynamo_frames import settings_of_frames

    handlers = [handler for name in HANDLERS for handler in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(_is_asked_for)
    try:
        with settings_of_frames(RECOMPILE_LIMIT):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_asked_for)


def _is_asked_for(record: logging.LogRecord) -> bool:
    """By ``TORCH_LOGS``; not a warning, advice or a traceback of what runs as it is: the reason is among ours. Others
    may write into a handler of torch's as well."""
    return record.levelno < logging.WARNING or not record.name.startswith("torch")


def twin(function: Function) -> Function:
    """The same function with a code object of its own: what Dynamo keeps with one (programs, what it could not compile)
    is then of this module alone."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace()
    if code.co_filename.startswith(str(Path(torch.__file__).parent)):
        # what stands in PyTorch's own files Dynamo wraps in a function that it shares among modules
        code = code.replace(co_filename=__file__)
    copied = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__, copied.__qualname__ = function.__kwdefaults__, function.__qualname__
    copied.__module__, copied.__dict__ = function.__module__, dict(vars(function))
    return copied
