"""How Dynamo compiles the code of an optimized module: a copy of it, and settings that hold only while it looks."""

from __future__ import annotations

import logging
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

Function = Callable[..., Any]

_NOISE = (
    "The .grad attribute of a Tensor that is not a leaf",
    "Dynamo detected a call to a `functools.lru_cache`",
    "<class '[^']*'> should not be instantiated",  # it makes instances of the user's autograd functions
)
"""How warnings of Dynamo begin that say nothing about the user's module, as regular expressions."""


def compiled(function: Function, backend: Function, *, suppress_errors: bool = True, **options: Any) -> Any:
    """``function``, which Dynamo compiles with ``backend`` when it is called; programs are shared with nobody."""
    from torch import _dynamo

    context = _dynamo.optimize(backend, isolate_recompiles=True, **options)
    context.callback = FrameCompiler(context.callback, suppress_errors)
    return context(function)


class FrameCompiler:
    """Dynamo's callback for a frame that has no program for a call yet; what has one never comes here."""

    def __init__(self, callback: Function, suppress_errors: bool) -> None:
        self._torchdynamo_orig_backend = callback  # by which Dynamo finds whose programs these are
        self._suppress_errors = suppress_errors

    def __call__(self, *args: Any) -> Any:
        with warnings.catch_warnings(), _settings(self._suppress_errors):
            for noise in _NOISE:
                warnings.filterwarnings("ignore", noise)
            return self._torchdynamo_orig_backend(*args)


@contextmanager
def _settings(suppress_errors: bool) -> Iterator[None]:
    """Dynamo takes recurrent layers, and sees hooks of children that come and go; what it fails at may run as it is."""
    from torch._dynamo import config

    failing = logging.getLogger("torch._dynamo.convert_frame")
    failing.addFilter(_is_no_failure)
    try:
        with config.patch(allow_rnn=True, skip_nnmodule_hook_guards=False, suppress_errors=suppress_errors):
            yield
    finally:
        failing.removeFilter(_is_no_failure)


def _is_no_failure(record: logging.LogRecord) -> bool:
    """Not Dynamo's traceback of a frame that runs as it is; the reason is among ours."""
    return not str(record.msg).startswith("WON'T CONVERT")


def twin(function: Function) -> Function:
    """The same function with a code object of its own: what Dynamo remembers of code (which sizes varied, what it could
    not compile) is then of this module alone."""
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace()
    if code.co_filename.startswith(str(Path(torch.__file__).parent)):
        # what stands in PyTorch's own files Dynamo wraps in a function that it shares among modules
        code = code.replace(co_filename=__file__)
    made = types.FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__, made.__dict__ = function.__module__, dict(vars(function))
    return made
