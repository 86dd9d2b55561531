"""What Dynamo's C++ half does with frames of Python; Dynamo itself is not imported for it."""

from __future__ import annotations

from types import CodeType

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    _SKIP = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


def never_compile(code: CodeType) -> None:
    """Let Dynamo look neither at frames of ``code`` nor at what they call."""
    set_code_exec_strategy(code, _SKIP)


def is_error_of_dynamo(error: BaseException) -> bool:
    """Whether Dynamo itself, and no code that it traces, raises errors of this class."""
    return type(error).__module__ == "torch._dynamo.exc"
