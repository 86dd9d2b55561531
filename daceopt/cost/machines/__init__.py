"""Models of machines with scratchpads: those of GraphTurbo's figure 1, this CPU, a GPU, and users' own from files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from daceopt.cost.machine import this_machine
from daceopt.cost.machines.file import load
from daceopt.cost.machines.hierarchy import WORK, Buffer, MachineModel, Unit
from daceopt.cost.machines.this_cpu import model_of
from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.graph.placements import LEVELS
from daceopt.scoped import scoped

__all__ = ["LEVELS", "WORK", "Buffer", "MachineModel", "Unit", "assume", "get", "load", "names"]

_FOLDER = Path(__file__).parent
_CPU = "cpu"
_assumed: ContextVar[MachineModel | None] = ContextVar("daceopt_assumed_machine", default=None)


@contextmanager
def assume(machine: MachineModel) -> Iterator[None]:
    """Within the block, steps that name no machine work for this one."""
    with scoped(_assumed, machine):
        yield


def names() -> list[str]:
    """The machines that :func:`get` knows."""
    return sorted([_CPU, *(path.stem for path in _FOLDER.glob("*.toml"))])


def get(name: str | MachineModel) -> MachineModel:
    """The built-in machine of this name, or that of a TOML file whose path it is; a model is itself.

    ``cpu`` is the machine that runs this process, as measured; "" is the one that :func:`assume` names, else ``cpu``.
    Raises DaceoptError for a name that is not known, MachineFileError for a file that makes no sense.
    """
    if isinstance(name, MachineModel):
        return name
    if name == "" and (other := _assumed.get()) is not None:
        return other
    if name in ("", _CPU):
        return model_of(this_machine())
    if name.endswith(".toml"):
        return load(name)
    if name not in names():
        hint = f"the built-in ones are {', '.join(names())}{did_you_mean(name, names())}"
        raise DaceoptError(f"there is no machine {name!r}; {hint}; others are paths of TOML files")
    return load(_FOLDER / f"{name}.toml")
