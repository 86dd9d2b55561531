"""Every error that daceopt raises on purpose; each message says what was expected, what was found, where, and what to
do."""

from __future__ import annotations

from collections.abc import Iterable

WRONG_CALL = "daceopt_wrong_call"
"""An attribute of errors of eager PyTorch's own: of calls that are wrong, whoever runs them."""


class DaceoptError(Exception):
    """Base class: catch this to catch all of daceopt's own errors.

    ``site``: where a transformation was when it raised this, as far as that is known.
    """

    site: str = ""


class Unsupported(DaceoptError):
    """A model uses something that daceopt cannot compile; the caller falls back or reports the reason."""


class NotKnownYet(Unsupported):
    """An ONNX model would compile if more were known of its inputs.

    ``needs`` has one tuple of ONNX value names for each gap: it may close once the value of one of these is known.
    ``sizes``: input sizes are missing, too.
    """

    def __init__(self, message: str, needs: Iterable[tuple[str, ...]] = (), sizes: bool = False):
        super().__init__(message)
        self.needs = tuple(dict.fromkeys(needs))
        self.sizes = sizes


class PyTorchChanged(DaceoptError, ImportError):
    """PyTorch has another release than daceopt was made for, and lacks a private name; says which, and what to do."""

    def __init__(self, missing: str, installed: str, tested: Iterable[str]):
        releases = ", ".join(tested)
        super().__init__(
            f"PyTorch {installed} lacks what daceopt uses of its internals: {missing}. This release of daceopt is "
            f"tested with PyTorch {releases}: install that, or a daceopt for PyTorch {installed}"
        )


class InstallationError(DaceoptError, ImportError):
    """Python or a package that daceopt cannot do without is missing, or of a version that it does not run with; says
    which, and what to install."""


class CaptureError(DaceoptError):
    """The model could not be turned into a graph (data-dependent control flow, untraceable Python)."""


class ModelFileError(DaceoptError):
    """An ONNX file is damaged, invalid, or asks for something unsafe."""


class BuildError(DaceoptError):
    """Generated code could not be compiled, linked or loaded."""


class RunError(DaceoptError, RuntimeError):
    """A compiled program reported an error while it ran; PyTorch's own errors are RuntimeErrors, too."""


class SizesError(RunError):
    """A compiled program was called with sizes that it is not for."""


class RunIndexError(RunError, IndexError):
    """A compiled program met an index that lies outside its array."""


class EarlierCallFailed(DaceoptError, RuntimeError):
    """Kernels on a device, for which nobody waits, met an error (an index out of range, say) in an earlier call: what
    that call gave, and what was computed from it, is wrong. The call that raises this has done nothing."""


class ArgumentsChanged(DaceoptError, RuntimeError):
    """A compiled program failed after it had begun to write its arguments (no memory was left, say): what they hold is
    neither their old nor their new value, so the call cannot be repeated."""


class MemoryBudgetError(DaceoptError, ValueError):
    """A program cannot run within its memory budget; says the least that was found possible, and what holds it."""


class VerificationError(DaceoptError):
    """A transformation broke the graph or its numbers; names the step and the site."""


class SiteError(DaceoptError):
    """A transformation raised by mistake at a site; says what, and where."""

    def __init__(self, error: Exception, site: str):
        super().__init__(f"{type(error).__name__}: {error}, at site {site}")
        self.site = site


class SessionError(DaceoptError):
    """A step of an interactive session failed; names the step, the site and the cause. The session is as it was."""


class IllegalSchedule(DaceoptError):
    """The schedule of a kernel does not compute what the kernel says; names the dependence, loop or element."""


class GraphTextError(DaceoptError):
    """The text of a graph cannot be read; names the line, what was expected there and what was found."""


class MachineFileError(DaceoptError, ValueError):
    """A file describes no machine that could be; names the key, what was expected and what was found."""


class StrategyError(DaceoptError, ValueError):
    """A strategy of distributed training is none, or for another model, number of workers or version; names the
    difference."""


class StateInShards(DaceoptError, RuntimeError):
    """Each rank has a part of an optimizer's state, and what was asked for needs the whole: gather it first."""


class WorkerError(DaceoptError, RuntimeError):
    """Ranks of distributed training do not go together: one is dead, hangs, is late, or computes something else; names
    the rank. What parameters hold is not defined behind it: go on from a checkpoint."""


class FallbackWarning(UserWarning):
    """A module, or an operator of it, runs outside compiled code; the message says which and why."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one as a question, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class IllegalOrder(DaceoptError, ValueError):
    """Nodes cannot run in this order: one reads what another writes later, is missing, or runs twice."""


class IllegalParts(DaceoptError, ValueError):
    """The parts of an array overlap, leave a gap, or leave the array."""


class UnequalLayers(DaceoptError):
    """Layers that look alike are not the same, or have not become the same; the message says what is not."""
