"""The arrays of a graph: buffers and the views of them, constants, layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import dace
import numpy as np
import sympy

from daceopt.ir.data.import_state import ImportState
from daceopt.ir.data.provenance import Maker, Origins
from daceopt.ir.scalar import types
from daceopt.ir.scalar.dims import Dim, Shape, dim, in_rows, row_major, span
from daceopt.ir.scalar.sizes import Sizes
from daceopt.ir.scalar.types import DType

SEED = "rng_seed"
_SEED_WORDS = 1
_MAX_HINT = 30
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DIGITS = 12  # of the number at the end of a name; longer ones are part of it


@dataclass(frozen=True)
class Descriptor:
    """What an array is: extents, strides in elements (both empty for one of rank 0), and the type of an element."""

    shape: Shape
    strides: Shape
    dtype: dace.typeclass

    @property
    def total_size(self) -> Dim:
        """Elements from the first to the last that it touches."""
        return span(self.shape, self.strides)


class Part(NamedTuple):
    """Where a part is: element i is element ``starts + i`` of ``whole``."""

    whole: str
    starts: tuple[Dim, ...]


class Arrays:
    """The arrays of one graph; :class:`daceopt.ir.graph.graph.Graph` adds the nodes that compute them."""

    def __init__(self, name: str):
        self.name = _clean(name) or "program"
        self.size_names: dict[str, None] = {}  # of the sizes, and counters of loops around, that extents may depend on
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.saved: list[str] = []  # arrays that a forward graph leaves for its backward graph
        self.replaced: dict[int, str] = {}  # position of an output -> the input whose new value it is
        self.in_place: dict[str, str] = {}  # output -> the input where it is, once that is decided
        self.overwrites: dict[str, str] = {}  # array -> the one in whose bytes it is written, once memory is planned
        self.constants: dict[str, np.ndarray] = {}
        self.symbols: dict[str, tuple[str, int]] = {}
        self.assumptions: list[sympy.Expr] = []  # polynomials over sizes that are 0 or more in every call
        self.source = ImportState()
        self.origins: dict[str, Origins] = {}  # array -> where in the model it is computed, where that is known
        self.apart: dict[str, bool] = {}  # array -> is it computed late? Kernels of both kinds are not fused
        self.maker = Maker()  # whose nodes and arrays are being added: see made_for
        self._descriptors: dict[str, Descriptor] = {}
        self._views: dict[str, tuple[str, Dim]] = {}
        self._views_of: dict[str, dict[str, None]] = {}  # array -> its direct views
        self._parts: dict[str, Part] = {}
        self._parts_of: dict[str, dict[str, None]] = {}  # array -> its direct parts
        self._counter = 0

    def fresh_name(self, hint: str) -> str:
        """A name that no array has."""
        self._counter += 1
        return f"{_clean(hint)[:_MAX_HINT] or 'v'}_{self._counter}"

    def _check_free(self, name: str) -> None:
        """Raise ValueError where an array is called ``name``."""
        if name in self._descriptors:
            raise ValueError(f"there is an array {name} already")

    def _take(self, name: str) -> None:
        """Keep ``name`` from being made again."""
        self._check_free(name)
        if not _NAME.fullmatch(name):
            raise ValueError(f"array {name[:50]!r}: expected lower-case letters, digits and underscores, at most 40")
        number = name.rpartition("_")[2]
        self._counter = max(self._counter, int(number) if number.isdigit() and len(number) < _DIGITS else 0)

    def add_array(
        self,
        hint: str,
        shape: Sequence[Dim],
        dtype: DType,
        strides: Sequence[Dim] | None = None,
    ) -> str:
        """Add an array of ``shape`` (ints or symbolic) and DaCe ``dtype``; row-major unless ``strides`` (elements) are
        given."""
        name = self.fresh_name(hint)
        self.declare(name, shape, dtype, strides)
        self.source.names.setdefault(name, hint)
        return name

    def declare(self, name: str, shape: Sequence[Dim], dtype: DType, strides: Sequence[Dim] | None = None) -> None:
        """Add an array of this very name, for graphs that are read; :meth:`add_array` makes names. ValueError for one
        that exists or that no array may have."""
        self._take(name)
        extents = tuple(dim(s) for s in shape)
        if self.maker.origins:
            self.origins[name] = self.maker.origins
        steps = tuple(dim(s) for s in strides) if strides and extents else row_major(extents)
        self._declare_sizes(extents)
        element = dtype if isinstance(dtype, dace.typeclass) else dace.typeclass(dtype)
        self._descriptors[name] = Descriptor(extents, steps, element)

    def _declare_sizes(self, exprs: Iterable[Dim]) -> None:
        for expr in exprs:
            if not isinstance(expr, int):
                self.size_names |= dict.fromkeys(sorted(map(str, expr.free_symbols)))

    def add_input(self, hint: str, shape: Sequence[Dim], dtype: DType) -> str:
        name = self.add_array(hint, shape, dtype)
        self.inputs.append(name)
        return name

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """An array whose value is known now; it becomes an argument that the loader binds, or a literal in a
        tasklet."""
        value = np.asarray(value)
        name = self.add_array(hint, value.shape, types.from_numpy(value.dtype))
        self.constants[name] = np.ascontiguousarray(value).reshape(value.shape)
        return name

    def bind(self, name: str, value: np.ndarray) -> None:
        """Turn an input into a constant of the same shape and dtype."""
        self.inputs.remove(name)
        self.constants[name] = np.ascontiguousarray(value).reshape(value.shape)

    def add_output(self, name: str) -> None:
        """Declare an array that is no view as the next output."""
        if name in self._views or name in self._parts:
            raise ValueError(f"output {name} is a {'view' if name in self._views else 'part'}; copy it first")
        self.outputs.append(name)

    def add_view(self, source: str, hint: str, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim = 0) -> str:
        """An alias of ``source``: element i is at ``offset + sum(strides * i)``, counted in elements of the root
        buffer from the source's start."""
        name = self.fresh_name(hint)
        self.declare_view(name, source, shape, strides, offset)
        self.source.names.setdefault(name, hint)
        return name

    def declare_view(
        self, name: str, source: str, shape: Sequence[Dim], strides: Sequence[Dim], offset: Dim = 0
    ) -> None:
        """Add a view of this very name, as :meth:`declare` does."""
        self._take(name)
        extents, steps = tuple(dim(s) for s in shape), tuple(dim(s) for s in strides)
        self._declare_sizes((*extents, *steps, dim(offset)))
        self._descriptors[name] = Descriptor(extents, steps, self.dtype(source))
        self._place_view(name, source, dim(offset))

    def _place_view(self, name: str, source: str, offset: Dim) -> None:
        """Let the view ``name`` be one of ``source``."""
        self._views[name] = (source, offset)
        self._views_of.setdefault(source, {})[name] = None

    def seed(self) -> str:
        """The int64 array of one element that random kernels read; added at the first use."""
        if not self.uses_seed:
            self.declare(SEED, (_SEED_WORDS,), dace.int64)
        return SEED

    @property
    def uses_seed(self) -> bool:
        return SEED in self._descriptors

    def desc(self, name: str) -> Descriptor:
        return self._descriptors[name]

    def shape(self, name: str) -> Shape:
        return self.desc(name).shape

    def dtype(self, name: str) -> dace.typeclass:
        return self.desc(name).dtype

    def strides(self, name: str) -> Shape:
        return self.desc(name).strides

    @property
    def sizes(self) -> Sizes:
        """What is known of the sizes in all calls."""
        return Sizes.where(self.assumptions)

    def size(self, name: str) -> Dim:
        """Number of elements."""
        return dim(prod(self.shape(name)))

    def arrays(self) -> list[str]:
        return list(self._descriptors)

    def has(self, name: str) -> bool:
        """Is ``name`` an array of the graph (and no local of a kernel)?"""
        return name in self._descriptors

    def is_transient(self, name: str) -> bool:
        """Is ``name`` memory of the program's own: no input, constant or output?"""
        return not (self.is_given(name) or name in self.outputs)

    def is_view(self, name: str) -> bool:
        return name in self._views

    def view_source(self, name: str) -> str:
        return self._views[name][0]

    def view_offset(self, name: str) -> Dim:
        return self._views[name][1]

    def is_given(self, name: str) -> bool:
        """Is ``name`` an input, a constant or the seed, which no node writes?"""
        return name in self.inputs or name in self.constants or name == SEED

    def is_part(self, name: str) -> bool:
        return name in self._parts

    def part(self, name: str) -> Part:
        """Of which array ``name`` is a part, and where it begins there."""
        return self._parts[name]

    def parts_of(self, name: str) -> list[str]:
        """The arrays that ``name`` is put together from; none where one node writes all of it."""
        return list(self._parts_of.get(name, ()))

    def root(self, name: str) -> tuple[str, Dim]:
        """The buffer that ``name`` aliases or is a part of, and where it starts there (in elements)."""
        offset: Dim = 0
        while True:
            if name in self._views:
                name, step = self._views[name]
            elif name in self._parts:
                name, starts = self._parts[name]
                step = sum(s * t for s, t in zip(starts, self.strides(name), strict=True))
            else:
                return name, offset
            offset = dim(offset + step)

    def written_array(self, name: str) -> str:
        """``name``, or what it is a view of: an array that nodes write."""
        while name in self._views:
            name = self._views[name][0]
        return name

    def views_of(self, name: str) -> list[str]:
        """Direct views of ``name``."""
        return list(self._views_of.get(name, ()))

    def aliases(self, name: str) -> list[str]:
        """``name`` and all through which its elements are read: direct and indirect views, the array that it is a part
        of."""
        names = [name]
        for alias in names:
            names.extend(self.views_of(alias))
            names.extend([self._parts[alias].whole] if alias in self._parts else [])
        return names

    def is_contiguous(self, name: str) -> bool:
        """Row-major without gaps; the strides of extents of 1 do not matter, nor those of empty arrays."""
        return in_rows(self.shape(name), self.strides(name))

    @contextmanager
    def label_nodes(self, label: str = "", origins: Origins = ()) -> Iterator[None]:
        """Within the block, nodes that a builder adds are called ``label``, whatever they say, and arrays that are
        added come from ``origins``."""
        outer, self.maker = self.maker, self.maker.then(label, origins)
        try:
            yield
        finally:
            self.maker = outer


def _clean(hint: str) -> str:
    """Only what C++, DaCe and file systems all take: lower-case ASCII letters, digits and single underscores."""
    text = re.sub(r"[^a-z0-9]+", "_", hint.lower().encode("ascii", "ignore").decode()).strip("_")
    return text if not text or text[0].isalpha() else f"v{text}"
