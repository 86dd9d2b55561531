"""The generated C++ of compiled programs, for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from daceopt.runtime.sources import is_called, matching

if TYPE_CHECKING:
    from daceopt.runtime.executable import Executable


class PairWithSources(Protocol):
    """A compiled pair, as ``compiled.CompiledPair``."""

    @property
    def forward(self) -> Executable: ...

    @property
    def backward(self) -> Executable | None: ...


def source_of(pair: PairWithSources, kernel: str | None = None) -> str:
    """The C++ of a pair, forward before backward: all of it, or the kernels whose label contains ``kernel``.

    Raises DaceoptError, with the labels that there are, when no direction has such a kernel.
    """
    programs = {"forward": pair.forward, "backward": pair.backward}
    present = {name: program for name, program in programs.items() if program is not None}
    if kernel is not None:
        labels = {name: [k.label for k in program.manifest.kernels] for name, program in present.items()}
        matching([label for kernels in labels.values() for label in kernels], kernel)
        present = {name: p for name, p in present.items() if any(is_called(label, kernel) for label in labels[name])}
    return "\n".join(f"// {name}\n{program.source(kernel)}" for name, program in present.items())


class Shown(NamedTuple):
    """A kernel as people read it: its C++, and how its loops run."""

    source: str
    schedule: str


def by_result(program: Executable) -> dict[str, Shown]:
    """Every kernel as it was built, by each array that it writes."""
    sources, kernels = program.sources, enumerate(program.manifest.kernels)
    return {name: Shown(sources.of(k), sources.schedules[k]) for k, info in kernels for name in info.writes}
