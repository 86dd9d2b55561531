"""Runs a batch of cases in this process; whoever called it lives in another, so a crash costs no other result."""

from __future__ import annotations

import json
import re
import signal
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from daceopt import pipeline
from daceopt.codegen.bundle import Bundle
from daceopt.errors import DaceoptError
from daceopt.modules.backend import Backend
from daceopt.modules.breaks import Break, reason_of
from daceopt.modules.options import Options
from daceopt.programs.derivation import Source
from daceopt.programs.stats import Stats
from tests.capture.torch.interpreted import compile_interpreted
from tests.codegen.cuda import emulated_target
from tests.opinfo import comparison, outcome
from tests.opinfo.entries import DTYPES, MODULES, Case, entries
from tests.opinfo.outcome import NARROW, WIDE, Arguments

SECONDS = 60  # for one step of one case; the alarm ends the process
SEEDS = 8  # tried, to see whether values are random
SHAKES = 4
UNDEFINED = re.compile("empty")  # values of such entries are what memory happens to hold

Send = Callable[[dict[str, Any]], None]
Make = Callable[[str, str, str, Bundle], Any]


class Skipped(Exception):
    """Eager PyTorch itself refuses the case."""


class Waiting(BaseException):
    """A compiled piece was called before it was built."""


def run(names: Sequence[str], mode: str, recipe: str, send: Send, make: Make | None = None) -> None:
    """Prepare all, compile them together, then run each. ``send`` gets {"doing": name} before each step, and
    {"name", "reason"} for each result: a record with its ``state`` (see ``states.py``). ``make`` gives the trial of a
    name; by default that of an operator of the database."""
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True  # as the module does
    bundle = _Patient()
    ready = []
    for name in names:
        with _step(name, send):
            ready.append((make or _trial)(name, mode, recipe, bundle))
    while ready:  # a backward pass may ask for programs that are differentiated in their turn
        signal.alarm(SECONDS * len(ready))
        bundle.build_all()
        ready = [trial for trial in ready if _waits(trial, bundle, send)]
    signal.alarm(0)


def _waits(trial: Any, bundle: _Patient, send: Send) -> bool:
    """Run ``trial``, unless it came to a program that is not built."""
    bundle.impatient = not trial.repeatable
    with _step(str(trial.case), send, trial):
        try:
            trial.check()
        except Waiting:
            return True
        send({"name": str(trial.case), "reason": trial.record("")})
    return False


class _Patient(Bundle):
    """Raises Waiting where a program is needed that is not built, unless it is ``impatient``."""

    impatient = False

    def build(self) -> None:
        if not self.impatient:
            raise Waiting
        super().build()

    def build_all(self) -> None:
        """Compile what waits."""
        super().build()


class _step:
    """One step of one case; what it raises becomes the result."""

    def __init__(self, name: str, send: Send, trial: Any = None):
        self.name, self.send, self.trial = name, send, trial

    def __enter__(self) -> None:
        self.send({"doing": self.name})
        signal.alarm(SECONDS)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> bool:
        signal.alarm(0)
        if isinstance(error, Exception):
            record = {**(self.trial.record("") if self.trial else {}), **_failure(error)}
            self.send({"name": self.name, "reason": record})
        return isinstance(error, Exception)


def _failure(error: Exception) -> dict[str, Any]:
    found: BaseException = getattr(error, "inner_exception", None) or error
    reason = " ".join(str(found).split())[:600]
    if isinstance(found, Skipped):
        return {"state": "skipped", "reason": reason}
    if isinstance(found, AssertionError) and found is error:
        return {"state": "wrong", "reason": reason}
    if isinstance(found, GuardOnDataDependentSymNode):
        return {"state": "refused", "reason": f"a size that only the data decides: {reason.partition('.')[0]}"}
    if isinstance(found, DaceoptError):
        return {"state": "refused", "reason": reason_of(found)[:600]}
    if type(found).__module__.startswith("torch._dynamo"):
        return {"state": "break", "reason": str(found).strip().partition("\n")[0][:300]}
    return {"state": "failed", "reason": f"{type(found).__name__}: {reason}"}


def _trial(name: str, mode: str, recipe: str, bundle: Bundle) -> Any:
    case = Case.parse(name)
    if mode.startswith("peer:"):
        return Peer(case, mode.partition(":")[2])
    return Trial(case, compiler(mode, bundle), recipe)


def compiler(mode: str, bundle: Bundle) -> Callable[..., Any]:
    """Stands in for ``pipeline.compile_graph``: the interpreter, or what it compiles waits in a bundle. ``emulate``:
    programs for cuda run in the emulation, in this process from now on."""
    if mode == "emulate":
        emulated_target.install_on_host(pytest.MonkeyPatch())
    return compile_interpreted if mode == "interpret" else _Bundled(bundle).compile


class _Bundled:
    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def compile(self, fingerprint: str, load: Callable[[], Any], *, recipe: str, **_: Any) -> Any:
        return pipeline.compile_in_bundle(_Source(**vars(pipeline.source_of(load, recipe))), self.bundle)


class _Source(Source):
    """Notes what ATen runs before libraries are chosen, which leaves no trace of it in the graphs."""

    def derive(self) -> Any:
        graphs = super().derive()
        self.hosted = tuple(hosted(g) if g is not None else set() for g in (graphs.forward, graphs.backward))
        return graphs


class Trial:
    """A case whose program is compiled; ``check`` runs it."""

    repeatable = True  # a call leaves nothing behind that the next would see

    def __init__(self, case: Case, compiler: Callable[..., Any], recipe: str) -> None:
        self.case = case
        self.repeatable = not case.entry.startswith(MODULES)
        self._expect()
        self.arguments = Arguments(case)
        self._prepare(self.arguments.call.fn, compiler, recipe)
        self.traced = False
        try:
            self.compiled(*self.arguments.args, **self.arguments.kwargs)
        except Waiting:
            self.traced = True
            self._renew()

    def _renew(self) -> None:
        if self.repeatable:
            self.arguments = Arguments(self.case)

    def _prepare(self, fn: Callable[..., Any], compiler: Callable[..., Any], recipe: str) -> None:
        self.open = False
        self.backend = Backend(Options(recipe=recipe), Stats(), _refused)
        self.backend.compile = self._compile
        self.pairs: list[Any] = []
        self._compile_pair = compiler
        self.compiled = _compiled(fn, self._behind_gate)

    def _expect(self) -> None:
        case = self.case
        self.order, self.eager = _eager(case)
        try:
            self.exact = outcome.run(Arguments(case, WIDE), self.order)
        except Exception:  # not every operator takes float64
            self.exact = self.eager
        self.by_chance = _is_random(case, self.order, self.eager)
        self.undefined = bool(UNDEFINED.search(case.entry))

    def _compile(self, *args: Any, **kwargs: Any) -> Any:
        self.pairs.append(self._compile_pair(*args, **kwargs))
        return self.pairs[-1]

    def _behind_gate(self, graph: Any, inputs: Any, **options: Any) -> Callable[..., Any]:
        piece = self.backend(graph, inputs)

        def call(*arguments: Any) -> Any:
            if not self.open:
                raise Waiting
            return piece(*arguments)

        return call

    _behind_gate.daceopt_backend = True  # type: ignore[attr-defined]  # as ``Backend`` has it: what tracing asks

    def check(self) -> None:
        """Run, and compare with eager PyTorch. Raises AssertionError."""
        self.open = True
        try:
            found = outcome.run(self.arguments, self.order, self.compiled)
        except Waiting:
            self._renew()
            raise
        if self.undefined:
            found = self.eager if _kinds(found) == _kinds(self.eager) else found
        comparison.compare(
            found, self.eager, self.exact, by_chance=self.by_chance, single=self._single, shaken=self._shaken
        )

    def _single(self) -> tuple[outcome.Outcome, outcome.Outcome]:
        narrow, wide = (Arguments(self.case, *steps) for steps in ((NARROW,), (NARROW, WIDE)))
        return outcome.run(narrow, self.order), outcome.run(wide, self.order)

    def _shaken(self) -> list[outcome.Outcome]:
        return [outcome.run(Arguments(self.case), self.order, shaken=k) for k in range(1, SHAKES + 1)]

    def record(self, reason: str) -> dict[str, Any]:
        """The state of a case that passed, and what ATen runs in it."""
        forward: set[str] = set()
        backward: set[str] = set()
        reasons: dict[str, str] = {}
        for pair in self.pairs:
            graphs = pair.source.graphs
            found = getattr(pair.source, "hosted", None) or [hosted(g) for g in (graphs.forward, graphs.backward) if g]
            forward |= found[0]
            backward |= set().union(*found[1:])
            reasons |= graphs.imported.hosted
        if not self.traced:
            return {"state": "break", "reason": "TorchDynamo found nothing to compile"}
        state = "host" if forward else "native"
        gradient = None if self.order == 0 else "host" if backward else "native"
        return {
            "state": state, "reason": reason, "gradient": gradient,
            "forward": sorted(forward), "backward": sorted(backward), "why": reasons,
        }  # fmt: skip


class Peer(Trial):
    """The same with a backend of PyTorch."""

    def __init__(self, case: Case, backend: str) -> None:
        self.case = case
        self._expect()
        self.arguments = Arguments(case)
        self.compiled = _compiled(self.arguments.call.fn, backend)

    def record(self, reason: str) -> dict[str, Any]:
        return {"state": "native", "reason": reason, "gradient": "native" if self.order else None}


def _eager(case: Case) -> tuple[int, outcome.Outcome]:
    """How often eager PyTorch differentiates the case, and what it gives."""
    entry, dtype = entries()[case.entry], DTYPES[case.dtype]
    floating = dtype.is_floating_point and entry.differentiates(dtype)
    highest = (2 if entry.has_second_gradient and dtype == torch.float64 else 1) if floating else 0
    for order in range(highest, -1, -1):
        try:
            return order, outcome.run(Arguments(case), order)
        except Exception as error:
            if order == 0:
                raise Skipped(f"{type(error).__name__}: {error}") from None
    raise AssertionError("unreachable")


def _is_random(case: Case, order: int, eager: outcome.Outcome) -> bool:
    """Does another seed give other values? Of few numbers only some seeds do."""
    seeds = range(1, SEEDS + 1) if outcome.draws(Arguments(case), order) else ()
    return any(comparison.differ(eager, outcome.run(Arguments(case), order, seed=s)) for s in seeds)


def _compiled(fn: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    def subject(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # Dynamo keeps what it compiled by code object: each case has its own
    own = types.FunctionType(subject.__code__.replace(), globals(), "subject", None, subject.__closure__)
    return torch.compile(own, backend=backend, fullgraph=True, dynamic=False)


def _refused(reason: Break, error: BaseException) -> None:
    raise error


def _kinds(found: outcome.Outcome) -> list[Any]:
    values = found.values.values()
    return [(v.dtype, v.shape, v.stride(), v.requires_grad) if isinstance(v, torch.Tensor) else v for v in values]


def hosted(graph: Any) -> set[str]:
    """Operators that ATen runs in a lowered graph."""
    from daceopt.ir.control.region import everything

    found = set()
    for part in everything(graph):
        for node in part.nodes():
            payload = getattr(node, "payload", "")
            if type(node).__name__ == "HostCall" and payload.startswith("{"):  # not one that only raises an error
                found.add(json.loads(payload).get("target", "?").removeprefix("aten::"))
    return found
