"""The arrays of a graph: buffers and the views of them, constants, layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import dace
import numpy as np
import sympy
from dace import nodes
from dace.memlet import Memlet

from daceopt.ir import memlets, parts, types
from daceopt.ir.dims import Dim, Shape, dim, in_rows, row_major, span
from daceopt.ir.import_state import ImportState
from daceopt.ir.parts import Part
from daceopt.ir.provenance import Maker, Origins

SEED = "rng_seed"
_SEED_WORDS = 1
_MAX_HINT = 30
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DIGITS = 12  # of the number at the end of a name; longer ones are part of it


class Arrays:
    """The arrays of one SDFG with one state, each with its access node; :class:`daceopt.ir.graph.Graph` adds the nodes
    that compute them."""

    def __init__(self, name: str):
        self.sdfg = dace.SDFG(_clean(name) or "program")
        self.state = self.sdfg.add_state("main", is_start_block=True)
        # without it DaCe inspects the whole Python call stack for each access node: up to 60 ms
        self.state.set_default_lineinfo(dace.dtypes.DebugInfo(0))
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.saved: list[str] = []  # arrays that a forward graph leaves for its backward graph
        self.replaced: dict[int, str] = {}  # position of an output -> the input whose new value it is
        self.in_place: dict[str, str] = {}  # output -> the input where it stands, once that is decided
        self.overwrites: dict[str, str] = {}  # array -> the one in whose bytes it is written, once memory is planned
        self.constants: dict[str, np.ndarray] = {}
        self.symbols: dict[str, tuple[str, int]] = {}
        self.assumptions: list[sympy.Expr] = []  # polynomials over sizes that are 0 or more in every call
        self.source = ImportState()
        self.origins: dict[str, Origins] = {}  # array -> where in the model it is computed, where that is known
        self.apart: dict[str, bool] = {}  # array -> is it computed late? Kernels of both kinds are not fused
        self.maker = Maker()  # whose nodes and arrays are being added: see made_for
        self.scalars: set[str] = set()  # arrays of logical rank 0, stored with shape (1,)
        self._views: dict[str, tuple[str, Dim]] = {}
        self._parts: dict[str, Part] = {}
        self._access: dict[str, nodes.AccessNode] = {}
        self._counter = 0

    def fresh_name(self, hint: str) -> str:
        """A name that no array has."""
        self._counter += 1
        return f"{_clean(hint)[:_MAX_HINT] or 'v'}_{self._counter}"

    def _check_free(self, name: str) -> None:
        """Raise ValueError where an array is called ``name``."""
        if name in self.sdfg.arrays:
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
        shape: Sequence[Any],
        dtype: Any,
        strides: Sequence[Any] | None = None,
        *,
        transient: bool = True,
    ) -> str:
        """Add an array of ``shape`` (ints or symbolic) and DaCe ``dtype``; row-major unless ``strides`` (elements) are
        given."""
        name = self.fresh_name(hint)
        self.declare(name, shape, dtype, strides, transient)
        self.source.names.setdefault(name, hint)
        return name

    def declare(
        self, name: str, shape: Sequence[Any], dtype: Any, strides: Sequence[Any] | None = None, transient: bool = True
    ) -> None:
        """Add an array of this very name, for graphs that are read; :meth:`add_array` makes names. ValueError for one
        that exists or that no array may have."""
        self._take(name)
        extents = tuple(dim(s) for s in shape)
        if self.maker.origins:
            self.origins[name] = self.maker.origins
        if not extents:
            self.scalars.add(name)
        stored = extents or (1,)
        steps = tuple(dim(s) for s in strides) if strides else row_major(stored)
        self._declare_symbols(stored)
        self.sdfg.add_array(name, stored, dtype, transient=transient, strides=steps, total_size=span(stored, steps))
        self._access[name] = self.state.add_access(name)

    def _declare_symbols(self, exprs: Iterable[Dim]) -> None:
        for expr in exprs:
            for symbol in getattr(expr, "free_symbols", ()):
                if str(symbol) not in self.sdfg.symbols:
                    self.sdfg.add_symbol(str(symbol), dace.int64)

    def add_input(self, hint: str, shape: Sequence[Any], dtype: Any) -> str:
        name = self.add_array(hint, shape, dtype, transient=False)
        self.inputs.append(name)
        return name

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """An array whose value is known now; it becomes an argument that the loader binds, or a literal in a
        tasklet."""
        value = np.asarray(value)
        name = self.add_array(hint, value.shape, types.from_numpy(value.dtype), transient=False)
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
        self.desc(name).transient = False
        self.outputs.append(name)

    def clear_outputs(self) -> None:
        """No array is an output any more."""
        for name in self.outputs:
            self.desc(name).transient = not self.is_given(name)
        self.outputs.clear()

    def add_view(self, source: str, hint: str, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0) -> str:
        """An alias of ``source``: element i stands at ``offset + sum(strides * i)``, counted in elements of the root
        buffer from the source's start."""
        name = self.fresh_name(hint)
        self.declare_view(name, source, shape, strides, offset)
        self.source.names.setdefault(name, hint)
        return name

    def declare_view(
        self, name: str, source: str, shape: Sequence[Any], strides: Sequence[Any], offset: Any = 0
    ) -> None:
        """Add a view of this very name, as :meth:`declare` does."""
        self._take(name)
        extents = tuple(dim(s) for s in shape)
        if not extents:
            self.scalars.add(name)
        stored, steps = extents or (1,), tuple(dim(s) for s in strides) or (1,)
        self._declare_symbols((*stored, *steps, dim(offset)))
        self.sdfg.add_view(name, stored, self.dtype(source), strides=steps, total_size=span(stored, steps))
        self._views[name] = (source, dim(offset))
        node = self._access[name] = self.state.add_access(name)
        node.add_in_connector("views")
        self.state.add_edge(self._access[source], None, node, "views", memlets.whole(source, self.desc(source)))

    def seed(self) -> str:
        """The int64 array of one element that random kernels read; added at the first use."""
        if SEED not in self.sdfg.arrays:
            self.declare(SEED, (_SEED_WORDS,), dace.int64, None, False)
        return SEED

    @property
    def uses_seed(self) -> bool:
        return SEED in self.sdfg.arrays

    def desc(self, name: str) -> dace.data.Array:
        return self.sdfg.arrays[name]

    def shape(self, name: str) -> Shape:
        return () if name in self.scalars else tuple(dim(s) for s in self.desc(name).shape)

    def dtype(self, name: str) -> dace.typeclass:
        return self.desc(name).dtype

    def strides(self, name: str) -> Shape:
        return () if name in self.scalars else tuple(dim(s) for s in self.desc(name).strides)

    def size(self, name: str) -> Dim:
        """Number of elements."""
        return dim(prod(self.shape(name)))

    def arrays(self) -> list[str]:
        return list(self._access)

    def access(self, name: str) -> nodes.AccessNode:
        return self._access[name]

    def has(self, name: str) -> bool:
        """Is ``name`` an array of the graph (and no local of a kernel)?"""
        return name in self._access

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
        return [e.src.data for e in self.state.in_edges(self._access[name]) if parts.joins(e)]

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

    def written(self, name: str) -> str:
        """``name``, or what it is a view of: an array that nodes write."""
        while name in self._views:
            name = self._views[name][0]
        return name

    def views_of(self, name: str) -> list[str]:
        """Direct views of ``name``."""
        return [e.dst.data for e in self.state.out_edges(self._access[name]) if e.dst_conn == "views"]

    def aliases(self, name: str) -> list[str]:
        """``name`` and all through which its elements are read: direct and indirect views, the array that it is a part
        of."""
        found = [name]
        for alias in found:
            found.extend(self.views_of(alias))
            found.extend([self._parts[alias].whole] if alias in self._parts else [])
        return found

    def is_contiguous(self, name: str) -> bool:
        """Row-major without gaps; the strides of extents of 1 do not matter, nor those of empty arrays."""
        return in_rows(self.shape(name), self.strides(name))

    def whole(self, name: str) -> Memlet:
        return memlets.whole(name, self.desc(name))

    @contextmanager
    def made_for(self, label: str = "", origins: Origins = ()) -> Iterator[None]:
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
