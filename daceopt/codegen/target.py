"""What a program is generated for: a kind of machine, and all that depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daceopt.codegen import toolchain
from daceopt.codegen.cpu.kernel_source import kernel_source as cpu_kernel
from daceopt.codegen.cuda.kernel_source import kernel_source as cuda_kernel
from daceopt.codegen.include import INCLUDE
from daceopt.codegen.kernel_unit import KernelSource
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.legality.hardware import TargetLimits, limits_of
from daceopt.store import identity


@dataclass(frozen=True)
class Target:
    """A kind of machine. The rest of the system knows of machines what is here.

    ``recipe``: the recipe whose steps of level ``hardware`` schedule its kernels. ``print_kernel(graph, kernel)``: a
    kernel in the loops of its schedule as a translation unit, once for those that are alike but for the names of arrays
    (``kernel_printing``). ``device``: where arrays live, in PyTorch's words, whose
    allocator makes them. ``has_stream``: kernels run on a stream that the caller gives, and the host does not wait for
    them. Its compiler is ``toolchain.get(name)``, its libraries are those of ``daceopt.libs`` that name it; what its
    schedules must keep is in ``ir.legality.hardware.LIMITS``. ``support``: a unit that is once in each program
    with a stream: what frame and libraries need of its runtime.
    """

    name: str
    recipe: str
    print_kernel: Callable[[Graph, Kernel], KernelSource]
    device: str = "cpu"
    has_stream: bool = False
    support: str = ""

    @property
    def toolchain(self) -> toolchain.Toolchain:
        """What compiles its kernels. Raises BuildError where none is known."""
        return toolchain.get(self.name)

    @property
    def limits(self) -> TargetLimits:
        """Of an accelerator: how large a block may be, and what its threads may share."""
        return limits_of(self.name)


_TARGETS = {
    "cpu": Target("cpu", "cpu", cpu_kernel),
    "cuda": Target("cuda", "cuda-kernels", cuda_kernel, "cuda", True, (INCLUDE / "daceopt/device.h").read_text()),
}
_OWN = dict(_TARGETS)


def get(name: str) -> Target:
    """The target called ``name``. Raises Unsupported with those that exist."""
    if name not in _TARGETS:
        raise Unsupported(f"no target is called {name!r}; there are: {', '.join(_TARGETS)}")
    return _TARGETS[name]


def on(device: str) -> Target:
    """The target for arrays on a device, in PyTorch's words: the first that is registered for it.

    Raises Unsupported where there is none.
    """
    target = next((candidate for candidate in _TARGETS.values() if candidate.device == device), None)
    if target is None:
        raise Unsupported(f"no target has its arrays on {device}; there are: {', '.join(_TARGETS)}")
    return target


def names() -> list[str]:
    """The names of all targets."""
    return list(_TARGETS)


def register(target: Target) -> None:
    """Make a target known; a later one of the same name replaces it."""
    _TARGETS[target.name] = target


def foreign_source() -> str:
    """What stands for the targets that users registered; "" for none."""
    users = {n: target for n, target in _TARGETS.items() if _OWN.get(n) != target}
    return identity.text_of(users) if users else ""
