"""Where reductions collect, and the statements that collect."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from daceopt.codegen.c_tree import Assign, Statement, Together
from daceopt.codegen.names import Names
from daceopt.ir.access.references import Reference
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.schedule.schedule import Loop


@dataclass(frozen=True)
class Accumulator:
    """Where a reduction collects: a scalar, or an array over the loops ``dims`` that are kept.

    ``private``: each thread has one, because a parallel loop is reduced. ``lanes``: a vector loop collects in it.
    ``outer``: the accumulator that it is added to in the end; None: it is stored into ``target``.
    """

    name: str
    op: str
    dtype: types.DType
    dims: tuple[Loop, ...]
    target: Reference
    private: bool = False
    lanes: bool = False
    outer: Accumulator | None = None

    @property
    def size(self) -> Dim:
        return dim(prod(loop.extent for loop in self.dims))

    @property
    def cpp(self) -> str:
        """Its type: truth is collected in bytes, for gcc takes lanes of bools apart."""
        return "uint8_t" if types.is_bool(self.dtype) else types.cpp(self.dtype)

    @property
    def operator(self) -> str:
        """What joins two values, where C++ has an operator for it."""
        of_truth = {"max": "|", "min": "&"} if types.is_bool(self.dtype) else {}
        return {"sum": "+", "prod": "*", **of_truth}.get(self.op, "")

    @property
    def notes_nan(self) -> bool:
        """A vector loop's own maximum passes NaN over, so it is noted beside it."""
        return self.lanes and self.op in ("max", "min") and types.is_float(self.dtype)

    @property
    def total(self) -> str:
        """What a scalar accumulator has collected."""
        return f"({self.name}_nan ? dop::nan<{self.cpp}>() : {self.name})" if self.notes_nan else self.name

    @property
    def clause(self) -> str:
        """What OpenMP is told where lanes collect in it."""
        nan = f" reduction(| : {self.name}_nan)" if self.notes_nan else ""
        return f" reduction({self.operator or self.op} : {self.name}){nan}"

    def index(self, names: Names) -> str:
        """Position in the array of kept elements, row-major."""
        code = "0"
        for k, loop in enumerate(self.dims):
            here = names.loop(loop.param)
            code = here if k == 0 else f"({code}) * {names.size_text(loop.extent)} + {here}"
        return code

    def add(self, names: Names, value: str, uses: frozenset[str] = frozenset()) -> Assign:
        """Adds a value to the accumulator."""
        here = f"{self.name}[{self.index(names)}]" if self.dims or self.private else self.name
        return Assign(here, self.join(here, value), uses=uses)

    def add_in_lanes(self, value: str, uses: frozenset[str]) -> Statement:
        """The same in a vector loop, in a form that compilers know as a reduction."""
        if self.operator:
            return Assign(self.name, value, self.operator, uses)
        better = f"{value} {'>' if self.op == 'max' else '<'} {self.name} ? {value} : {self.name}"
        compared = Assign(self.name, better, uses=uses)
        if not self.notes_nan:
            return compared
        return Together((compared, Assign(f"{self.name}_nan", f"{value} != {value}", "|", uses)))

    def join(self, a: str, b: str) -> str:
        """The reduction of two values, as an expression."""
        if not self.operator:
            return f"dop::{self.op}imum<{self.cpp}>({a}, {b})"
        return f"{a} {self.operator} {self.cpp}({b})"


def identity(op: str, dtype: types.DType) -> str:
    """The value from which a reduction starts."""
    if op in ("max", "min"):
        return f"dop::{'lowest' if op == 'max' else 'highest'}<{types.cpp(dtype)}>::value"
    return f"{types.cpp(dtype)}({0 if op == 'sum' else 1})"
