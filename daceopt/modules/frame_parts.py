"""Functions that run in parts because Dynamo cannot compile them as a whole: those of one module."""

from __future__ import annotations

import types
from typing import Any

from daceopt.capture.torch import function_parts
from daceopt.torch_internals import dynamo_frames
from daceopt.torch_internals.dynamo_tracing import ExactWeakKeyDictionary

_GIVEN_UP = "an error was suppressed during compilation"
"""Dynamo's word for a frame of which it compiles nothing because of what is in it."""


class Parts:
    """``region``: Dynamo's number for whose programs are meant."""

    def __init__(self) -> None:
        self.region = -1
        self._known: Any = ExactWeakKeyDictionary()  # code of a function -> that of the same in parts

    def of(self, code: types.CodeType) -> Any:
        """What Dynamo is to do with a frame that runs in parts; None for another."""
        known = self._known.get(code)
        return None if known is None else dynamo_frames.run_always(known)

    def split(self, code: types.CodeType, answer: Any) -> Any:
        """The same where Dynamo's own ``answer`` is that it gives up; None where there are no parts.

        If the frame is the rest of a function behind a graph break, it runs as it is this time, and the function is in
        parts from its next call on.
        """
        if answer.guarded_code is not None or answer.skip_reason != _GIVEN_UP:
            return None
        function = dynamo_frames.function_behind(code)
        whole = code if function is None else function
        split_code = function_parts.in_parts(whole)
        if split_code is None:
            return None
        self._known[whole] = split_code
        if function is None:
            return dynamo_frames.run_always(split_code)
        dynamo_frames.forget_programs(whole, self.region, "the function is in parts")
        return answer
