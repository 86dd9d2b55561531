"""Runs a batch of random programs in this process, as ``tests/opinfo/batch.py`` does the database's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

from daceopt.codegen.bundle import Bundle
from tests.fuzz import execution
from tests.fuzz.generator import program
from tests.fuzz.program import Program
from tests.opinfo import batch, comparison
from tests.opinfo.outcome import Outcome

REFUSED = (
    "internal overlap",
    "where it is detached",
    "a detached value, require a gradient",
    "drops nothing of a value",
    "a write into windows",
)
"""What PyTorch's functionalization refuses or gets wrong, and what is written or read behind autograd's back, which run
in eager PyTorch."""


class Trial(batch.Trial):
    """A program that is compiled; ``check`` runs it."""

    repeatable = False

    def __init__(self, subject: Program, compiler: Callable[..., Any], recipe: str) -> None:
        self.case = subject.seed  # type: ignore[assignment]  # its name
        self.program = subject
        self.eager = execution.run(execution.Arguments(subject))
        self.exact = execution.run(execution.Arguments(subject, wide=True))
        self._prepare(_call, compiler, recipe)
        self.given = execution.Arguments(subject)
        self.traced, self.order = False, int(bool(self.given.leaves()))
        try:
            self.compiled(self.given.module, *self.given.arguments)
        except batch.Waiting:
            self.traced = True

    def check(self) -> None:
        """Run, and compare with eager PyTorch. Raises AssertionError."""
        self.open = True
        found = execution.run(self.given, self.compiled)
        try:
            comparison.compare(found, self.eager, self.exact)
        except AssertionError as error:
            self._compare_disturbed(found, error)

    def _compare_disturbed(self, found: Outcome, error: AssertionError) -> None:
        """Once more, allowing what other roundings of eager PyTorch's operators make of the call."""
        if ": strides" in str(error) and execution.strides(found) == execution.promised_strides(self.program):
            raise batch.Skipped("PyTorch's shape rules give other strides") from error
        for what, theirs in self.eager.values.items():
            if not isinstance(theirs, torch.Tensor):
                continue
            others = [o.values.get(what) for o in self._disturbed]
            if not theirs.dtype.is_floating_point:
                if any(not torch.equal(o, theirs) for o in others if isinstance(o, torch.Tensor)):
                    raise batch.Skipped(f"{what} depends on rounding") from error
                continue
        comparison.compare(found, self._worst, self.exact)

    @cached_property
    def _disturbed(self) -> list[Outcome]:
        return list(execution.disturbed(self.program))

    @property
    def _worst(self) -> Outcome:
        """Of each value the one that is farthest from float64."""
        worst = Outcome(dict(self.eager.values))
        for what, exact in self.exact.values.items():
            if isinstance(exact, torch.Tensor) and exact.is_floating_point() and exact.numel():
                options = [self.eager.values[what], *(o.values[what] for o in self._disturbed)]
                worst.values[what] = max(
                    options, key=lambda o: float((o.detach().double() - exact.detach()).abs().max())
                )
        return worst


def _call(module: Any, *arguments: Any) -> Any:
    return module(*arguments)


def trial(subject: Program, mode: str, recipe: str, bundle: Bundle) -> Trial:
    return Trial(subject, batch.compiler(mode, bundle), recipe)


def _of_seed(name: str, *rest: Any) -> Trial:
    try:
        return trial(program(int(name)), *rest)
    except Exception as error:
        reason = str(getattr(error, "inner_exception", error))
        if any(text in reason for text in REFUSED):
            raise batch.Skipped(reason) from error
        raise


run = partial(batch.run, make=_of_seed)
