"""A frame whose graph is refused runs as the user wrote it, not as Dynamo traced it.

Dynamo's guards stay: a call with other arguments is looked at anew. What the frame calls is compiled for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import fx

from daceopt.torch_internals.dynamo_frames import (
    create_call_function,
    create_instruction,
    register_bytecode_hook,
    transform_code_object,
)
from daceopt.torch_internals.dynamo_tracing import ExactWeakKeyDictionary

_refused: dict[str, Callable[[], None]] = {}  # Dynamo's name for a graph -> what counts the calls that have none
_written: Any = ExactWeakKeyDictionary()  # the copies of users' code that run
_hooks: list[Any] = []


def leave(graph: fx.GraphModule, count: Callable[[], None]) -> None:
    """Let Python run the frame of a graph that Dynamo has called the backend for; ``count`` is called in each call."""
    if (name := graph.meta.get("backend_id")) is not None:
        _refused[name] = count


def install() -> None:
    """Let Dynamo ask which code runs for a frame, if that is not done yet."""
    if not _hooks:
        _hooks.append(register_bytecode_hook(_as_written))


def is_as_written(code: CodeType) -> bool:
    """Whether code that Dynamo keeps for a frame is the user's, of a graph that was refused."""
    return code in _written


def _as_written(code: CodeType, transformed: CodeType) -> CodeType | None:
    """The user's code, a copy of it, in place of what calls a refused graph."""
    counts = [_refused.pop(name) for name in transformed.co_names if name in _refused]
    if not counts:
        return None

    def count_first(instructions: list[Any], options: dict[str, Any]) -> None:
        at = next((k for k, i in enumerate(instructions) if i.opname == "RESUME"), -1) + 1
        call = create_instruction("LOAD_CONST", argval=counts[0])
        instructions[at:at] = [call, *create_call_function(0, True), create_instruction("POP_TOP")]

    rewritten = transform_code_object(code, count_first)[0]
    _written[rewritten] = True
    return rewritten
