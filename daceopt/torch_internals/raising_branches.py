"""Branches of Python's code one side of which only raises, as TorchDynamo reads the code."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._dynamo.variables.ctx_manager import ContextWrappingVariable as _TorchContext

_CONSTANTS = (str, int, float, bool, type(None))
_ENDS = frozenset({"RAISE_VARARGS", "RERAISE"})
_GOES_ON = frozenset("RETURN_VALUE RETURN_CONST YIELD_VALUE YIELD_FROM SEND RETURN_GENERATOR".split())
"""Instructions after which the caller goes on."""
_BLOCKS = ("SETUP_", "BEFORE_WITH", "BEFORE_ASYNC_WITH")  # what begins where errors may be caught
_LEAVES = ("COPY", "CALL_INTRINSIC_1")  # with which begins what raises an error again
_SILENT = frozenset("PUSH_NULL PRECALL NOP CACHE EXTENDED_ARG".split())


class RaisingSide(NamedTuple):
    """What a branch raises: where its value is ``truth``. ``error`` is the class's path, empty where the code
    computes the error, or its arguments."""

    truth: bool
    error: str
    arguments: tuple[Any, ...]


def raising_side(translator: Any, branch: Any) -> RaisingSide | None:
    """The side of the branch, which the translator is at, that only raises, and that nothing catches; None where both
    or neither do."""
    if branch.opname.endswith("_OR_POP") or _is_caught(translator):
        return None
    instructions, index = translator.instructions, translator.indexof
    starts = (translator.instruction_pointer, index[branch.target])
    is_raising = [_only_raises(instructions, index, start, branch.exn_tab_entry) for start in starts]
    if is_raising[0] == is_raising[1]:
        return None
    jumps_if = "TRUE" in branch.opname
    error = _constant_error(instructions[starts[is_raising[1]] :], translator.f_globals)
    return RaisingSide(jumps_if == is_raising[1], *(error or ("", ())))


def is_branched_on(translator: Any) -> bool:
    """Does the next instruction branch on what the present one gives, and drop it?"""
    at, instructions = translator.instruction_pointer, translator.instructions
    names = [one.opname for one in instructions[at : at + 2] if one.opname != "TO_BOOL"]
    return names[0].startswith("POP_JUMP") and names[0].endswith(("IF_TRUE", "IF_FALSE"))


def pass_by(translator: Any, branch: Any, side: RaisingSide) -> None:
    """Let the translator go on at the other side of the branch."""
    translator.pop()
    if ("TRUE" in branch.opname) != side.truth:
        translator.jump(branch)


def class_at(path: str) -> type[BaseException]:
    """The class that ``RaisingSide.error`` names."""
    module, _, name = path.partition(":")
    value: Any = sys.modules[module]
    for part in name.split("."):
        value = getattr(value, part)
    kind: type[BaseException] = value
    return kind


def _is_caught(translator: Any) -> bool:
    """Is it in a ``try``, or in a context that is not known to be PyTorch's own, here or where it was called from?"""
    while translator is not None:
        blocks = translator.block_stack
        if not all(isinstance(block.with_context, _TorchContext) for block in blocks):
            return True
        contexts = [block.target for block in blocks]
        handler = translator.current_instruction.exn_tab_entry
        while handler is not None:  # since Python 3.11; before, all handlers are blocks
            target = handler.target
            if not (target.opname in _LEAVES or any(target is one for one in contexts)):
                return True
            handler = target.exn_tab_entry
        translator = translator.parent
    return False


def _only_raises(instructions: Sequence[Any], index: Any, start: int, handler: object) -> bool:
    """Does every path from there raise, in the frame, and outside of further blocks?"""
    waiting, visited = [start], set[int]()
    while waiting:
        at = waiting.pop()
        if at in visited:
            continue
        visited.add(at)
        instruction = instructions[at]
        name = instruction.opname
        if name in _GOES_ON or name.startswith(_BLOCKS) or instruction.exn_tab_entry != handler:
            return False
        if name in _ENDS:
            continue
        if instruction.target is not None:
            waiting.append(index[instruction.target])
        if not name.startswith("JUMP_") or "_IF_" in name:
            waiting.append(at + 1)
    return True


def _constant_error(instructions: Sequence[Any], names: dict[str, Any]) -> tuple[str, tuple[Any, ...]] | None:
    """The class and the arguments of ``raise C(...)`` where these are constants; None for other statements."""
    kind: Any = None
    arguments: list[Any] = []
    for one in instructions:
        if one.opname in _SILENT or (one.opname.startswith("CALL") and kind is not None and one.opname in _CALLS):
            continue
        if one.opname == "RAISE_VARARGS":
            path = _path(kind) if one.arg == 1 else ""
            return (path, tuple(arguments)) if path else None
        if one.opname == "LOAD_CONST" and kind is not None and type(one.argval) in _CONSTANTS:
            arguments.append(one.argval)
        elif (load := _LOADS.get(one.opname)) is not None and not arguments:
            kind = load(kind, one.argval, names)
        else:
            return None
    return None


_CALLS = ("CALL", "CALL_FUNCTION")
_LOADS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "LOAD_GLOBAL": lambda kind, name, names: names.get(name, getattr(builtins, name, None)) if kind is None else None,
    "LOAD_ASSERTION_ERROR": lambda kind, name, names: AssertionError,
    "LOAD_ATTR": lambda kind, name, names: getattr(kind, name, None),
}


def _path(kind: object) -> str:
    """Where the class of an error is; empty where it is none, or nobody finds it there."""
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return ""
    path = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return path if class_at(path) is kind else ""
    except (AttributeError, KeyError):
        return ""
