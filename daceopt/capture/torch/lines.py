"""Which line of a model an error of the compiler is about: Dynamo notes with each call of a graph where it was made."""

from __future__ import annotations

from torch import fx

UNLIKE_PYTHON = "A program would do something else."
"""Dynamo's explanation of the breaks that ``tracing`` makes; each has a hint of its own."""

_STACK = "daceopt_stack"  # the attribute of an error


def line_of(node: fx.Node) -> str:
    """Where Dynamo says that a call was made, as frames that Python prints; empty for calls of PyTorch's own."""
    return str(node.meta.get("stack_trace") or "")


def note_line(error: BaseException, stack: str) -> None:
    """Keep with the error where the call comes from that it is about, unless it is known already."""
    if stack and not stack_of(error):
        setattr(error, _STACK, stack)


def stack_of(error: BaseException | None) -> str:
    """The frames, as Python prints them, of the call that an error, or what it comes from, is about; or nothing."""
    while error is not None:
        if stack := getattr(error, _STACK, ""):
            return str(stack)
        error = error.__cause__
    return ""
