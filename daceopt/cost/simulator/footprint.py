"""Which elements a node reads and writes, counted exactly: the distinct ones, by the array that one node writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import sympy

from daceopt.errors import DaceoptError
from daceopt.ir.graph.kinds import Node
from daceopt.ir.kernel.kernel import Access, Kernel, Stage
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.scalar.affine import affine
from daceopt.ir.scalar.dims import Dim

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph


@dataclass(frozen=True)
class _Window:
    """Elements ``offset + sum(strides * i)`` of a buffer, for all i within ``shape``."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, offset: int, dims: Iterable[tuple[int, int]]) -> _Window:
        """Without dimensions that repeat one element, the longest strides first; ``dims``: (extent, stride)."""
        axes = sorted(((n, s) for n, s in dims if n != 1 and s != 0), key=lambda d: -abs(d[1]))
        offset += sum((n - 1) * s for n, s in axes if s < 0)
        return cls(offset, tuple(n for n, _ in axes), tuple(abs(s) for _, s in axes))

    @property
    def is_injective(self) -> bool:
        """Is each element met once?"""
        reach = 0
        for n, s in zip(reversed(self.shape), reversed(self.strides)):
            if s <= reach:
                return False
            reach += (n - 1) * s
        return True

    def on(self, flat: np.ndarray) -> np.ndarray:
        steps = [s * flat.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps)


class Footprints:
    """The elements that the nodes of one graph move; ``sizes``: values of its size symbols.

    A library node moves its operands as its views show them, a kernel what its accesses reach. Of an array that is read
    at run-time indices no more counts than iterations read. Regions, and kernels with partial tiles, move whole arrays.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None = None):
        self._graph, self._sizes = graph, dict(sizes or {})

    def reads(self, node: Node) -> dict[str, int]:
        """Array that is given, or that one node writes -> how many of its elements ``node`` reads."""
        counts: dict[str, int] = {}
        for written, (windows, picked) in self._windows(node).items():
            counted = self._count(written, windows)
            for name in self._graph.sources(written) if picked else counted:
                counts[name] = min(self.elements(name), counted.get(name, 0) + picked)
        return {name: count for name, count in counts.items() if count}

    def writes(self, node: Node) -> dict[str, int]:
        """Array -> how many of its elements ``node`` writes: all of them."""
        return {name: self.elements(name) for name in self._graph.outputs_of(node) if name is not None}

    def elements(self, name: str) -> int:
        """Of an array, those that a view repeats counted once."""
        return self._size(self._whole(name))

    def number(self, value: Dim) -> int:
        """An expression over sizes. Raises DaceoptError for a size that is not known."""
        if isinstance(value, int):
            return value
        value = sympy.sympify(value)
        if missing := sorted({str(s) for s in value.free_symbols} - self._sizes.keys()):
            raise DaceoptError(f"the sizes {', '.join(missing)} are open; expected values, given are {self._sizes}")
        return int(value.xreplace({s: sympy.Integer(self._sizes[str(s)]) for s in value.free_symbols}))

    # ---------------------------------------------------------------- windows of a node

    def _windows(self, node: Node) -> dict[str, tuple[list[_Window], int]]:
        """Array that nodes write -> windows into its buffer, and elements that are picked at run-time indices."""
        windows_of: dict[str, tuple[list[_Window], int]] = {}
        for name, window, picked in self._accesses(node):
            windows, count = windows_of.get(self._graph.written_array(name), ([], 0))
            windows_of[self._graph.written_array(name)] = ([*windows, window] if window else windows, count + picked)
        return windows_of

    def _accesses(self, node: Node) -> Iterator[tuple[str, _Window | None, int]]:
        graph = self._graph
        kernel = node.kernel if isinstance(node, KernelNode) else None
        if kernel is None or kernel.is_tiled:
            yield from ((n, self._whole(n), 0) for n in graph.inputs_of(node) if n is not None)
            return
        for stage in kernel.stages:
            for access in stage.reads.values():
                if access.array not in kernel.locals:
                    yield access.array, *self._access(kernel, stage, access)

    def _access(self, kernel: Kernel, stage: Stage, access: Access) -> tuple[_Window | None, int]:
        forms = [None if e is None else affine(e, kernel.extents) for e in access.index]
        extents = {p: self.number(kernel.extents[p]) for p in stage.params}
        if any(f is None or not f.is_exact for f in forms):
            loads = int(np.prod(list(extents.values()), dtype=np.int64))
            return None, min(loads, self.elements(access.array))
        graph, steps = self._graph, dict.fromkeys(stage.params, 0)
        offset = self.number(graph.root(access.array)[1])
        for form, stride in zip(forms, map(self.number, graph.strides(access.array))):
            assert form is not None
            offset += self.number(form.constant) * stride
            for p, factor in form.terms:
                steps[p] += self.number(factor) * stride
        if 0 in extents.values():
            return None, 0
        return _Window.of(offset, [(extents[p], step) for p, step in steps.items()]), 0

    def _whole(self, name: str) -> _Window | None:
        shape, strides = ([self.number(v) for v in values(name)] for values in (self._graph.shape, self._graph.strides))
        if 0 in shape:
            return None
        return _Window.of(self.number(self._graph.root(name)[1]), zip(shape, strides))

    # ---------------------------------------------------------------- counting

    def _count(self, written: str, windows: Sequence[_Window]) -> dict[str, int]:
        sources, distinct = self._graph.sources(written), list(dict.fromkeys(windows))
        if not distinct:
            return {}
        if len(sources) == 1 and len(distinct) == 1 and distinct[0].is_injective:
            return {sources[0]: int(np.prod(distinct[0].shape, dtype=np.int64))}
        marked = self._mark(self._graph.root(written)[0], distinct)
        boxes = ((name, self._whole(name)) for name in sources)
        return {name: int(np.count_nonzero(box.on(marked))) for name, box in boxes if box is not None}

    def _mark(self, root: str, windows: Sequence[_Window]) -> np.ndarray:
        """The buffer ``root``, true where it is read."""
        whole = self._whole(root)
        reach = 0 if whole is None else sum((n - 1) * s for n, s in zip(whole.shape, whole.strides))
        marked = np.zeros(reach + 1, bool)
        for window in windows:
            window.on(marked)[...] = True
        return marked

    def _size(self, window: _Window | None) -> int:
        return 0 if window is None else int(np.prod(window.shape, dtype=np.int64))
