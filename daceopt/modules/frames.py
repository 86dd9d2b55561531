"""How Dynamo compiles the code of an optimized module: a copy of it, and settings that hold only while it looks."""

from __future__ import annotations

import logging
import os
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from daceopt.capture.torch import decided, function_parts
from daceopt.capture.torch.collection import pause
from daceopt.errors import DaceoptError
from daceopt.modules import options
from daceopt.modules.breaks import Breaks
from daceopt.torch_internals import dynamo_frames, functorch
from daceopt.torch_internals.dynamo_tracing import ExactWeakKeyDictionary, forget_constants
from daceopt.torch_internals.logger_names import HANDLERS

Function = Callable[..., Any]
SeenSizes = Mapping[Any, dynamo_frames.CodeState]
"""Which sizes each piece of code was called with, by which Dynamo tells those that vary."""

_NOISE = (
    "The .grad attribute of a Tensor that is not a leaf",
    "<class '[^']*'> should not be instantiated",  # it makes instances of the user's autograd functions
)
"""How warnings about what Dynamo itself does begin, as regular expressions; its own modules give advice on it."""

_SPOKEN = (str(Path(logging.__file__).parent) + os.sep, warnings.__file__)
"""What is said behind a graph break is no part of a model: nothing of it is compiled."""


def compile_frames(function: Function, backend: Any, sizes: SeenSizes | None = None, **options: Any) -> Any:
    """``function``, which Dynamo compiles with ``backend`` when it is called; programs are shared with nobody, nor is
    which sizes vary, unless ``sizes`` are. Its ``region`` says to Dynamo whose programs are meant."""
    context = dynamo_frames.optimize(backend, **options)
    frames = FrameCompiler(
        context.callback,
        None if options.get("nopython") else backend,
        no_sizes() if sizes is None else sizes,
    )
    context.callback = frames
    compiled = context(function)
    frames.region = compiled.region = dynamo_frames.region_of(context)
    return compiled


def no_sizes() -> SeenSizes:
    """Those of code that was not called yet."""
    return defaultdict(dynamo_frames.CodeState)


class FrameCompiler:
    """Dynamo's callback for a frame that has no program for a call yet; what has one never comes here.

    Where Dynamo fails, the frame runs as it is, and ``listener`` hears why; without one the error is raised. Functions
    that Dynamo cannot compile as a whole run in parts. ``sizes`` stand in the place of Dynamo's own, which are of all
    instances of a class: another one, with sizes of its own, would have open sizes in its first program already.
    """

    def __init__(self, callback: Function, listener: Breaks | None, sizes: SeenSizes) -> None:
        self._torchdynamo_orig_backend = callback  # by which Dynamo finds whose programs these are
        self._listener, self._sizes = listener, sizes
        self.region: Any = None  # by which Dynamo tells whose programs are meant
        self.has_given_up = False  # whether Dynamo compiles nothing of the last frame because of what is in it
        self._in_parts: Any = ExactWeakKeyDictionary()  # code of a function -> that of the same in parts
        if listener is not None:
            dynamo_frames.wrap_conversion(callback, lambda convert: _Told(convert, listener, self))

    def __call__(self, frame: Any, *args: object) -> object:
        code = frame.f_code
        if _is_transformed(code):
            return dynamo_frames.leave_call()
        if code.co_filename.startswith(_SPOKEN):
            return dynamo_frames.leave_frame_and_calls()
        if (parts := self._in_parts.get(code)) is not None:
            return dynamo_frames.run_always(parts)
        answer, has_given_up = self._convert(frame, *args)
        split = self._split(code, answer) if has_given_up else None
        if split is None:
            return answer
        if self._listener is not None:
            self._listener.goes_on()
        return split

    def _split(self, code: types.CodeType, answer: object) -> object:
        """What Dynamo is to do with the same in parts where it gives up, which is its own ``answer``; None where there
        are no parts.

        If the frame is the rest of a function behind a graph break, it runs as it is this time, and the function is in
        parts from its next call on.
        """
        function = dynamo_frames.function_behind(code)
        whole = code if function is None else function
        split_code = function_parts.in_parts(whole)
        if split_code is None:
            return None
        self._in_parts[whole] = split_code
        if function is None:
            return dynamo_frames.run_always(split_code)
        dynamo_frames.forget_programs(whole, self.region, "the function is in parts")
        return answer

    def _convert(self, frame: object, *args: object) -> tuple[Any, bool]:
        """What Dynamo is to do with the frame, and whether that is nothing because of what is in it."""
        with (
            dynamo_frames.sizes_in_place(self._sizes),
            dynamo_frames.counting_own(self),
            warnings.catch_warnings(),
            _settings(),
            pause(),
        ):
            for noise in _NOISE:
                warnings.filterwarnings("ignore", noise)
            warnings.filterwarnings("ignore", module=r"torch\._(dynamo|functorch|subclasses)\.")
            try:
                return self._trace(frame, *args), self.has_given_up
            except Exception as error:
                if self._listener is None:
                    is_named = isinstance(error, DaceoptError | Warning)
                    named = error if is_named else dynamo_frames.as_error_of_dynamo(error)
                    if named is error:  # no error is its own cause: who follows causes would not come back
                        raise
                    raise named from error
                return _as_it_is(error), False
            finally:
                forget_constants()  # which numbers are constants in this code: in other code they are not

    def _trace(self, frame: object, *args: object) -> object:
        """Sizes that only the data decide are in the graph; where that fails, it breaks at what decides them."""
        with decided.watch() as sizes:
            try:
                return self._torchdynamo_orig_backend(frame, *args)
            except Exception:
                if not sizes.any:
                    raise
        if self._listener is not None:
            self._listener.begins_again()
        with dynamo_frames.without_open_results():
            return self._torchdynamo_orig_backend(frame, *args)


class _Told:
    """What compiles a frame in Dynamo, or raises why not; ``listener`` hears of it, and ``frames`` keeps it."""

    def __init__(self, convert: Function, listener: Breaks, frames: FrameCompiler) -> None:
        self._convert, self._listener, self._frames = convert, listener, frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)

    def __call__(self, frame: Any, *args: object, **kwargs: object) -> object:
        self._listener.begins(frame.f_code)
        try:
            answer = self._convert(frame, *args, **kwargs)
        except Exception as error:
            self._frames.has_given_up = not dynamo_frames.is_at_limit(error)
            self._listener.on_failure(error, leaves_calls=_leaves_calls(error))
            raise
        self._frames.has_given_up = False
        return answer


def _as_it_is(error: Exception) -> object:
    """What tells Dynamo not to compile a frame.

    Where an operator failed as it was traced, nothing that the frame calls is compiled either: a model may ask whether
    it is compiled and do something else, which must not meet in one call with what it does if it is not.
    """
    return dynamo_frames.leave_frame_and_calls() if _leaves_calls(error) else dynamo_frames.leave_frame()


def _leaves_calls(error: Exception) -> bool:
    return isinstance(error, dynamo_frames.TorchRuntimeError)


def _is_transformed(code: types.CodeType) -> bool:
    """Whether a transform of ``torch.func`` calls the frame, or is it: a graph of it would mean something else."""
    return functorch.innermost_transform() is not None or code.co_filename.startswith(functorch.FOLDER)


@contextmanager
def _settings() -> Iterator[None]:
    """Dynamo's for frames; what it says is not shown."""
    handlers = [handler for name in HANDLERS for handler in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(_is_asked_for)
    try:
        with dynamo_frames.settings_of_frames(options.RECOMPILE_LIMIT):
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
        # what is in PyTorch's own files Dynamo wraps in a function that it shares among modules
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
