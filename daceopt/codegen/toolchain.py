"""How the kernels of a target become object files; importing it imports neither DaCe nor SymPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daceopt import system
from daceopt.codegen.cpu import toolchain as cpu
from daceopt.codegen.cuda import toolchain as cuda
from daceopt.errors import BuildError
from daceopt.store import identity


@dataclass(frozen=True)
class UnitSize:
    """How many kernels one run of a compiler takes: ``least`` or more, where there are as many, and about ``most`` at
    most, where there is a bound."""

    least: int = 1
    most: int | None = 1

    def units(self, kernels: int) -> int:
        """The number of units for so many kernels: as many as cores, if the bounds allow."""
        count = min(system.cores(), kernels // self.least)
        return max(1, count, 0 if self.most is None else -(-kernels // self.most))


@dataclass(frozen=True)
class Toolchain:
    """A compiler for kernels.

    ``command``: the compiler with its flags, to which the job's own, the source and ``-c -o`` are added; raises
    BuildError with what to install. ``language``: ``c++`` is read from standard input, others from a file. ``link``:
    what the linker takes for objects of it. ``fingerprint`` stands for all that decides about the object and is no
    part of the command or the source. ``arithmetic``: flags for what the kernels of a source compute. ``unit``:
    how many kernels one run of the compiler takes.
    """

    command: Callable[[], tuple[str, ...]]
    language: str = "c++"
    link: Callable[[], tuple[str, ...]] = tuple
    fingerprint: Callable[[], str] = str
    arithmetic: Callable[[str], tuple[str, ...]] = lambda source: ()
    unit: UnitSize = UnitSize()


_TOOLCHAINS = {
    "cpu": Toolchain(cpu.command, arithmetic=cpu.arithmetic, unit=UnitSize(*cpu.UNIT)),
    "cuda": Toolchain(cuda.command, "cu", cuda.link, cuda.version, unit=UnitSize(*cuda.UNIT)),
}
_OWN = dict(_TOOLCHAINS)


def get(target: str) -> Toolchain:
    """The toolchain of the target called ``target``. Raises BuildError with those that exist."""
    if target not in _TOOLCHAINS:
        raise BuildError(f"no compiler is known for the target {target!r}; there are: {', '.join(_TOOLCHAINS)}")
    return _TOOLCHAINS[target]


def register(target: str, toolchain: Toolchain) -> None:
    """Let kernels of ``target`` be compiled so; a later one of the same name replaces it."""
    _TOOLCHAINS[target] = toolchain


def foreign_source() -> str:
    """What stands for the toolchains that users registered; "" for none."""
    users = {n: toolchain for n, toolchain in _TOOLCHAINS.items() if _OWN.get(n) != toolchain}
    return identity.text_of(users) if users else ""
