"""Functions that run in parts because Dynamo cannot compile them as a whole: those of one module."""

from __future__ import annotations

import types
from typing import Any

from torch._dynamo.eval_frame import _get_cache_entries_for_region
from torch._dynamo.guards import DeletedGuardManagerWrapper, GuardManagerWrapper
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._dynamo.types import GuardedCode, wrap_guarded_code
from torch._dynamo.utils import ExactWeakKeyDictionary
from torch._guards import CompileId

from daceopt.capture.torch import function_parts

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
        return None if known is None else _always(known)

    def split(self, code: types.CodeType, answer: Any) -> Any:
        """The same where Dynamo's own ``answer`` is that it gives up; None where there are no parts.

        If the frame is the rest of a function behind a graph break, it runs as it is this time, and the function is in
        parts from its next call on.
        """
        if answer.guarded_code is not None or answer.skip_reason != _GIVEN_UP:
            return None
        rest = ContinueExecutionCache.generated_code_metadata.get(code)
        whole = code if rest is None else rest.code
        split_code = function_parts.in_parts(whole)
        if split_code is None:
            return None
        self._known[whole] = split_code
        if rest is None:
            return _always(split_code)
        self._forget(whole)
        return answer

    def _forget(self, code: types.CodeType) -> None:
        """Let Dynamo ask again for calls that it has compiled."""
        for entry in _get_cache_entries_for_region(code, self.region):
            if entry.guard_manager.extra_state is not None:
                deleted = DeletedGuardManagerWrapper("the function is in parts")
                entry.guard_manager.extra_state.invalidate(entry, deleted)


def _always(code: types.CodeType) -> Any:
    """What tells Dynamo to run ``code`` for all calls of a frame."""
    return wrap_guarded_code(GuardedCode(code, GuardManagerWrapper(), CompileId(frame_id=0, frame_compile_id=0)))
