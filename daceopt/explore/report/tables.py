"""What ``explain`` found out about a model, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from daceopt.cost.machine import Machine
from daceopt.errors import DaceoptError
from daceopt.explore.report.units import printable
from daceopt.ir.data.provenance import stems
from daceopt.runtime.sources import is_called, matching


@dataclass(frozen=True)
class OperatorRow:
    """An operator type of the source model.

    ``how``: "native" (a lowering of its own), "lowered" (through its ONNX function body), "host" (ATen runs it, called
    from compiled code) or "fallback" (outside of it); ``reason`` says why.
    """

    name: str
    count: int
    how: str
    reason: str = ""


@dataclass(frozen=True)
class KernelRow:
    """A kernel or library call of the optimized program.

    ``direction``: "forward" or "backward". ``writes``: the results in the model's own words. ``library``: empty for
    generated kernels. ``limit``: the least seconds that the machine's bandwidth and arithmetic allow. ``seconds``:
    measured, None when nothing was. ``source``: its C++, or for a library the statement that calls it. ``schedule``:
    how its loops run, as a program; empty for a library. ``origin``: the modules whose ``forward`` it comes from, or
    the nodes of an ONNX file, where that is known.
    """

    direction: str
    label: str
    writes: str
    contents: str
    bytes: int
    flops: int
    limit: float
    seconds: float | None = None
    library: str = ""
    why: str = ""
    source: str = ""
    schedule: str = ""
    origin: str = ""

    @property
    def share(self) -> float | None:
        """How much of the machine's limit it reaches, 1 being all of it; None when it was not measured."""
        return self.limit / self.seconds if self.seconds else None

    def text(self) -> str:
        """What it is, then its schedule, then its C++."""
        return "\n".join([*self.head(), *filter(None, (self.schedule, self.source))])

    def head(self) -> list[str]:
        """What it is, as comments."""
        origin = [f"// from {self.origin}"] if self.origin else []
        return list(map(printable, [f"// {self.direction}, {self.label}: {self.writes}", *origin]))


@dataclass(frozen=True)
class Edge:
    """An array of ``bytes`` from one kernel to another, by their places in ``Report.kernels``; None: the caller, or the
    other direction."""

    source: int | None
    target: int | None
    bytes: int


@dataclass(frozen=True)
class StepRow:
    """What one step of the recipe did to one direction; bytes are numbers for the sizes of the call."""

    direction: str
    name: str
    level: str
    seconds: float
    sites: int
    nodes: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True)
class MemoryRow:
    """The bytes that are alive while a node runs, in the arena and saved for the backward; ``largest``: the arrays that
    take most of them."""

    direction: str
    node: str
    bytes: int
    largest: str


@dataclass(frozen=True)
class CallRow:
    """A steady call of the module, or its backward: seconds of the whole, and of its parts by their names.

    ``pieces``: how many the call runs, compiled or not, of which ``eager`` in eager PyTorch. ``compiles``: why each
    call compiles again; empty where none does.
    """

    name: str
    seconds: float
    parts: Mapping[str, float]
    pieces: int = 0
    eager: int = 0
    compiles: str = ""

    @property
    def rest(self) -> float:
        """What the parts leave of the whole; below zero where they are more."""
        return self.seconds - sum(self.parts.values())


@dataclass(frozen=True)
class Advice:
    """Something to do, as a sentence, and the seconds of a call that it saves at most, by what was measured."""

    sentence: str
    seconds: float


@dataclass
class Tables:
    """What is supported, what was fused, what moves and what it costs.

    ``reason`` is empty, or says why the model runs outside of compiled code; what is known up to there is filled in.
    ``memory``: a row per node, of programs beside what their callers give and get; ``peak``: the bytes that they
    allocate for that, of which ``saved`` are kept for the backward. ``calls``: a steady call of a module, and its
    backward; ``advice``: what is worth most, at most three.
    """

    title: str
    mode: str = "inference"
    recipe: str = ""
    inputs: list[str] = field(default_factory=list)
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    seconds: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    nodes: tuple[int, int] = (0, 0)
    bytes_moved: tuple[float, float] = (0, 0)
    machine: Machine | None = None
    memory: list[MemoryRow] = field(default_factory=list)
    peak: int = 0
    saved: int = 0
    calls: list[CallRow] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Seconds of a call and its backward; of all kernels where calls were not measured."""
        return sum(call.seconds for call in self.calls) or sum(k.seconds or 0.0 for k in self.kernels)

    @property
    def fallbacks(self) -> list[OperatorRow]:
        """The operators that run outside of compiled code."""
        return [o for o in self.operators if o.how == "fallback"]

    @property
    def hosted(self) -> list[OperatorRow]:
        """The operators that ATen runs, called from compiled code."""
        return [o for o in self.operators if o.how == "host"]

    def of(self, direction: str) -> list[KernelRow]:
        """The kernels of one direction, in the order in which they run."""
        return [k for k in self.kernels if k.direction == direction]

    def matching(self, text: str) -> list[KernelRow]:
        """The kernels whose label contains ``text``, else those whose origin (``blocks.0.norm``) or contents
        (``tanh``) do.

        DaceoptError says which labels there are instead.
        """
        for key in (lambda k: k.label, lambda k: k.origin, lambda k: k.contents):
            matches = [k for k in self.kernels if is_called(key(k), text)]
            if matches:
                return matches
        matching([k.label for k in self.kernels], text)  # raises
        return []

    def kernel(self, text: str) -> KernelRow:
        """The kernel called ``text``, else a forward one that has it in it (``softmax`` in ``add__softmax``), else one
        whose label begins with it, else as ``matching``.

        Of several with one label, as equal layers have them, the first. DaceoptError says which labels there are where
        ``text`` fits several, or none.
        """
        name, matches = text.lower(), self.matching(text)
        matches = [k for k in matches if k.label.lower() == name] or matches
        matches = [k for k in matches if k.direction == "forward"] or matches
        matches = [k for k in matches if name in stems(k.label.lower())] or matches
        matches = [k for k in matches if k.label.lower().startswith(name)] or matches
        labels = list(dict.fromkeys(k.label for k in matches))
        if len(labels) > 1:
            raise DaceoptError(f"{text!r} fits several kernels: {', '.join(labels)}; say more of the label")
        return matches[0]
