"""Runs a program with a plain module and with an optimized one, and tells where what a caller sees differs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._dynamo
from torch import nn

from daceopt import optimized_module
from daceopt.errors import DaceoptError

TOLERANCE = 1e-6  # of float64, in which chains of small networks lose some digits
NARROW = 0.05  # of programs with sections in bfloat16 or float32

_OVERWRITTEN = "needs values that were written over"

Seen = list[tuple[str, Any]]


class Refused(Exception):
    """The optimized module raises why it is not compiled."""


def load(text: str, name: str = "random_module.py") -> types.ModuleType:
    """The program as a module whose text Python finds."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    made = types.ModuleType("random_module")
    sys.modules[made.__name__] = made  # where dataclasses look for it
    exec(compile(text, name, "exec"), vars(made))
    return made


class Caller:
    """Calls a module as a script says, and keeps what can be seen: results, gradients, what was written and said."""

    def __init__(self, net: nn.Module, seed: int = 0) -> None:
        self.net = net
        self.seen: Seen = []
        self.error: Exception | None = None
        self.errors: list[Exception] = []
        self._drawn = torch.Generator().manual_seed(seed)
        self._live: list[torch.Tensor] = []
        self._inputs: list[torch.Tensor] = []

    def run(self, steps: list[Callable[..., None]]) -> Seen:
        """What is seen in all steps, each by its label. Raises Refused."""
        for step in steps:
            self._live, self._inputs = [], []
            with contextlib.redirect_stdout(io.StringIO()) as said, warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                self._step(step)
            self._note("said", said.getvalue())
            self._note("warned", [str(w.message) for w in warned if str(w.message).startswith("net:")])
            self._look_around(self.error is not None)
        return self.seen

    def _step(self, step: Callable[..., None]) -> None:
        self._name, self.error = step.__name__, None
        try:
            step(self.net, self.draw, self.see, total, tensors, backward, update_parameters)
        except DaceoptError as error:
            raise Refused from error
        except Exception as error:
            self.error = error
            self.errors.append(error)
            overwritten = "modified by an inplace operation" in str(error)
            self._note(_OVERWRITTEN if overwritten else "raised", type(error).__name__)

    def draw(self, *shape: int) -> torch.Tensor:
        made = torch.randn(*shape, generator=self._drawn, dtype=torch.float64)
        self._inputs.append(made)
        return made

    def see(self, label: str, *values: Any) -> None:
        for value in values:
            self._note(label, value)

    def _look_around(self, failed: bool) -> None:
        """What a call may have changed without being asked."""
        for k, tensor in enumerate(self._inputs):
            self._note(f"input {k}", tensor)
        for name, parameter in self.net.named_parameters():
            self._note(f"parameter {name}", parameter)
            if not failed:  # an error ends a backward pass somewhere
                self._note(f"gradient {name}", parameter.grad)
        for name, buffer in self.net.named_buffers():
            self._note(f"buffer {name}", buffer)
        for name, module in self.net.named_modules():
            self._note(f"attributes {name}", {k: v for k, v in vars(module).items() if _is_of_user(k, v)})
        self._note("overlap", _overlap(self._live))
        self._note("random", (random.getstate()[1][:3], np.random.get_state()[1][:3].tolist()))  # type: ignore[index]  # noqa: NPY002
        self._note("grad mode", torch.is_grad_enabled())

    def _note(self, label: str, value: Any) -> None:
        self.seen.append((f"{self._name}: {label}", _frozen(value, self._live, "gradient" in label)))


def _is_of_user(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in ("daceopt", "forward", "hook") and not isinstance(value, nn.Module)


def tensors(value: Any) -> list[torch.Tensor]:
    """Those in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Iterator):
        value = list(value)
    return [t for one in value for t in tensors(one)] if isinstance(value, list | tuple) else []


def total(value: Any) -> Any:
    """A loss of all results that can have a gradient: each element with another weight."""
    loss = torch.zeros((), dtype=torch.float64)
    for k, one in enumerate(tensors(value)):
        if one.requires_grad:
            weight = torch.cos(torch.arange(one.numel(), dtype=torch.float64) * 1.7 + k).reshape(one.shape)
            loss = loss + (one.real * weight + (one.imag * weight if one.is_complex() else 0)).sum()
    return loss


def backward(loss: torch.Tensor, **options: Any) -> None:
    """Where there is anything to differentiate."""
    if loss.requires_grad:
        loss.backward(**options)


def update_parameters(net: nn.Module) -> None:
    """A step of clipped gradient descent."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad.clamp(-1, 1)
    net.zero_grad()


@dataclasses.dataclass
class _Tensor:
    """What a caller can see of a tensor."""

    values: torch.Tensor
    kind: tuple[Any, ...]


def _frozen(value: Any, live: list[torch.Tensor], is_gradient: bool = False) -> Any:
    """The value as it is now; its tensors, which stay alive, are added to ``live``."""
    if isinstance(value, torch.Tensor):
        live.append(value)
        tags = tuple(sorted((k, v) for k, v in vars(value).items() if k == "tag"))
        kind = (str(value.dtype), tuple(value.shape), type(value).__name__, _strides(value), tags)
        alone = () if is_gradient else (value.requires_grad, value.grad_fn is None, value.is_inference())
        return _Tensor(value.detach().clone(), kind[: 3 if is_gradient else 5] + alone)
    if isinstance(value, dict):
        return type(value).__name__, [(k, _frozen(v, live)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [_frozen(v, live) for v in value]
    if dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        return type(value).__name__, _frozen(vars(value), live)
    if isinstance(value, Iterator):  # Dynamo gives what a generator yields by another one
        return "iterator", [_frozen(v, live) for v in value]
    return value if isinstance(value, float | int | str | None) else type(value).__name__


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    if not tensor.numel():
        return ()
    return tuple(step for step, size in zip(tensor.stride(), tensor.shape) if size > 1)


def _overlap(live: list[torch.Tensor]) -> str:
    """Which tensors share memory, by the order in which they were seen, and where in it they begin."""
    known: dict[int, int] = {}
    found = []
    for tensor in live:
        if tensor.numel():
            place = tensor.untyped_storage().data_ptr()
            found.append(f"{known.setdefault(place, len(known))}")
    return " ".join(found)


def differs(ours: Seen, theirs: Seen, tolerance: float) -> str | None:
    """Where what was seen differs first, or None."""
    for (ours_label, mine), (label, expected) in zip(ours, theirs):
        if label.endswith(_OVERWRITTEN):
            return None  # a program keeps values of its own, and may compute what eager PyTorch refuses
        if label.endswith(": raised") and expected != "Stop":
            return (
                None  # where in a wrong call an error is raised, nobody promises, nor whether nothing reads what fails
            )
        if ours_label != label:
            return f"{ours_label!r} where {label!r} is expected"
        text = _difference(mine, expected, tolerance)
        if text is not None:
            return f"{label}: {text}"
    return None if len(ours) == len(theirs) else f"{len(ours)} things seen, expected {len(theirs)}"


def _difference(mine: Any, expected: Any, tolerance: float) -> str | None:
    if isinstance(expected, _Tensor) and isinstance(mine, _Tensor):
        return _numbers(mine, expected, tolerance)
    if isinstance(expected, float) and isinstance(mine, float):
        close = abs(mine - expected) <= tolerance * max(1, abs(expected)) or (mine != mine and expected != expected)
        return None if close else f"{mine}, expected {expected}"
    if isinstance(expected, list | tuple) and type(mine) is type(expected) and len(mine) == len(expected):
        return next((t for a, b in zip(mine, expected) if (t := _difference(a, b, tolerance))), None)
    return None if type(mine) is type(expected) and mine == expected else f"{mine!r:.300}, expected {expected!r:.300}"


def _numbers(mine: _Tensor, expected: _Tensor, tolerance: float) -> str | None:
    if mine.kind != expected.kind:
        return f"{mine.kind}, expected {expected.kind}"
    a, b = (t.values.resolve_conj().to(torch.complex128) for t in (mine, expected))
    if not b.numel() or torch.equal(torch.isfinite(a), torch.isfinite(b)) is False:
        return None if not b.numel() else f"{mine.values}, expected {expected.values}"
    finite = torch.isfinite(b)
    error = (a - b)[finite].abs().max().item() if finite.any() else 0.0
    scale = max(b[finite].abs().max().item(), 1e-2) if finite.any() else 1.0
    return (
        None if error <= tolerance * scale else f"error {error / scale:.1e}: {mine.values}, expected {expected.values}"
    )


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """In float64, and with the same random numbers each time."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def observe(text: str, optimize: Callable[[nn.Module], Any] = lambda net: None, seed: int = 0) -> tuple[Seen, Caller]:
    """What is seen of a program whose module ``optimize`` has changed, and who called it."""
    with _seeded(seed):
        program = load(text)
        net = program.Net()
        optimize(net)
        caller = Caller(net, seed)
        return caller.run(program.STEPS), caller


def compare(text: str, fallback: str = "silent") -> str | None:
    """Where an optimized module differs from a plain one; None where it does not, or says why it is not compiled."""
    torch._dynamo.reset()
    theirs, _ = observe(text)
    try:
        ours, _ = observe(text, partial(optimized_module, recipe="none", fallback=fallback))
    except Refused:
        return None if fallback == "raise" else "refused"
    return differs(ours, theirs, tolerance(text))


def tolerance(text: str) -> float:
    """Of relative errors, for what the program computes in."""
    return NARROW if any(word in text for word in ("autocast", ".float()", ".half()")) else TOLERANCE
