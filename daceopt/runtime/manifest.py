"""What a built program takes and gives, as plain JSON beside the library: read in a warm start, without DaCe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from daceopt.errors import BuildError

FORMAT = 9


@dataclass(frozen=True)
class Tensor:
    """An array that crosses the boundary: name, numpy dtype name (``float32``, ``bool``), number of dimensions, and the
    device that it lives on, in PyTorch's words. ``in_place``: the input over which an output is
    written, whose own address is not looked at then."""

    name: str
    dtype: str
    rank: int
    device: str = "cpu"
    in_place: str | None = None


@dataclass(frozen=True)
class Symbol:
    """A size that a call determines: the extent of ``axis`` of the input called ``input``."""

    name: str
    input: str
    axis: int


@dataclass(frozen=True)
class Assumption:
    """A polynomial over sizes that is 0 or more in every call that the program is for: the sum of its terms, each a
    factor and the names of the symbols that it multiplies."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Is it so for these values of the symbols?"""
        return sum(factor * prod(sizes[name] for name in names) for factor, names in self.terms) >= 0

    def __str__(self) -> str:
        sides = ["", ""]
        for factor, names in self.terms:
            product = "*".join([*([] if names and abs(factor) == 1 else [str(abs(factor))]), *names])
            sides[factor > 0] += f" + {product}" if sides[factor > 0] else product
        return f"{sides[0] or 0} <= {sides[1] or 0}"


@dataclass(frozen=True)
class SavedArray:
    """An array in the saved block: element type, shape and offset in bytes, these as text over the symbols."""

    dtype: str
    shape: tuple[str, ...]
    offset: str


@dataclass(frozen=True)
class KernelInfo:
    """For reports only: the label of a kernel or library call, and the arrays that it writes (each written by no
    other). ``origin``: the path of the innermost module from which all of it comes, empty where none is known.
    ``library``: whose call it is; empty for generated code."""

    label: str
    writes: tuple[str, ...]
    origin: str = ""
    library: str = ""

    @property
    def path(self) -> str:
        """``layers.3.attention/softmax``: what traces call it."""
        return f"{self.origin}/{self.label}" if self.origin else self.label


@dataclass(frozen=True)
class Manifest:
    """Interface of a built program.

    A call passes one address per input, constant and output, in this order, then the saved block, the arena and the
    seed (null where unused), and, where ``has_stream``, the stream on which kernels run. A program that ``consumes``
    overwrites the saved block that it gets: it runs on it once. What one starts on a device may be recorded and
    started again if it ``repeats``. ``saved``: what is in the saved block that it leaves. ``numbers``: symbols that
    decide no size, as a counter of the model's. ``kernels`` are in the order in which they run.
    """

    name: str
    inputs: tuple[Tensor, ...] = ()
    constants: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    uses_seed: bool = False
    saves: bool = False
    kernels: tuple[KernelInfo, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    has_stream: bool = False
    consumes: bool = False
    repeats: bool = True
    saved: tuple[SavedArray, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def pointer_count(self) -> int:
        """Length of the pointer list of a call."""
        return len(self.inputs) + len(self.constants) + len(self.outputs) + 3 + self.has_stream

    @property
    def device(self) -> str:
        """Where its arrays live, in PyTorch's words."""
        return next((t.device for t in (*self.outputs, *self.inputs)), "cpu")

    @property
    def results(self) -> str:
        """Element type and rank of each output, as the library gives them, too: ``float32[2] int64[0]``."""
        return " ".join(f"{t.dtype}[{t.rank}]" for t in self.outputs)

    def violations(self, symbols: Sequence[int]) -> list[Assumption]:
        """What the program takes for granted and these values of its symbols do not fulfil."""
        if not self.assumptions:
            return []
        sizes = {s.name: value for s, value in zip(self.symbols, symbols, strict=True)}
        return [a for a in self.assumptions if not a.holds(sizes)]

    def to_json(self) -> str:
        """Return the manifest as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str | bytes) -> Manifest:
        """Read ``to_json``'s text; BuildError when it is damaged or of another format."""
        try:
            fields = json.loads(text)
            if fields.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            return _manifest(fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BuildError(
                f"the manifest of a built program cannot be read: {error}; it has to be built again"
            ) from error


def _manifest(fields: dict[str, Any]) -> Manifest:
    records = {"inputs": Tensor, "constants": Tensor, "outputs": Tensor, "symbols": Symbol, "kernels": KernelInfo}
    for name, record in records.items():
        fields[name] = tuple(record(**item) for item in fields[name])
    fields["saved"] = tuple(SavedArray(a["dtype"], tuple(a["shape"]), a["offset"]) for a in fields["saved"])
    fields["kernels"] = tuple(KernelInfo(k.label, tuple(k.writes), k.origin, k.library) for k in fields["kernels"])
    fields["assumptions"] = tuple(
        Assumption(tuple((int(factor), tuple(map(str, names))) for factor, names in item["terms"]))
        for item in fields["assumptions"]
    )
    fields["numbers"] = tuple(map(str, fields["numbers"]))
    return Manifest(**fields)
