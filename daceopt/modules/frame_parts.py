"""Functions that run in parts because Dynamo cannot compile them as a whole: those of one module."""

from __future__ import annotations

import types
from typing import Any

from daceopt.capture.torch import function_parts
from daceopt.torch_internals import dynamo_frames
from daceopt.torch_internals.dynamo_tracing import ExactWeakKeyDictionary


class Parts:
    """``region`` tells Dynamo whose programs are meant."""

    def __init__(self) -> None:
        self.region: Any = None
        self._known: Any = ExactWeakKeyDictionary()  # code of a function -> that of the same in parts

    def of(self, code: types.CodeType) -> Any:
        """What Dynamo is to do with a frame that runs in parts; None for another."""
        known = self._known.get(code)
        return None if known is None else dynamo_frames.run_always(known)

    def split(self, code: types.CodeType, answer: Any) -> Any:
        """The same where Dynamo gives up, which is its own ``answer``; None where there are no parts.

        If the frame is the rest of a function behind a graph break, it runs as it is this time, and the function is in
        parts from its next call on.
        """
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
