"""Elements whose positions are computed, and the checks that these are inside of their arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dace
import sympy

from daceopt.codegen.c_tree import ElementLoad, Expr, Name, Position, ScalarValue, Ternary, expression
from daceopt.codegen.names import Names
from daceopt.codegen.scalar.printer import Printer
from daceopt.ir.access.references import Reference
from daceopt.ir.scalar import scalar, types
from daceopt.ir.scalar.dims import Dim


class Lookups:
    """Text of the scalar expressions of a leaf: ``values`` has the types of symbols, ``arrays`` what ``load`` reads.

    ``checks``: does the code that was printed check an index?
    """

    def __init__(
        self, names: Names, values: Mapping[sympy.Symbol, types.DType], arrays: Mapping[sympy.Symbol, Reference]
    ):
        self._names, self._values, self._arrays = names, values, arrays
        self._printer = Printer(values, loads=lambda *load: expression(self._load(*load)))
        self._places: Mapping[tuple[sympy.Expr, int], str] = {}
        self.checks = False

    def lower(self, value: Expr) -> Expr:
        """``value`` as text; a name or a load where it is just that."""
        if isinstance(value, Position):
            return self._position(self._text(value.index), value.extent, value.stride)
        if not isinstance(value, ScalarValue):
            return value
        expr = value.expr
        self.checks |= expr.has(scalar.checked)
        if isinstance(expr, scalar.load) and types.compute_type(self._arrays[expr.args[0]].buffer.dtype) == value.dtype:
            index = [self._text(ScalarValue(i, dace.int64, value.known, value.places)) for i in expr.args[1:]]
            return self._load(expr.args[0], index, expr.args[1:])
        text = self._text(value)
        is_name = any(s.name == text and self._values.get(s) == value.dtype for s in expr.free_symbols)
        return Name(text) if is_name else text  # also of a cast to its own type

    def axes(self, load: sympy.Expr) -> list[tuple[sympy.Expr, Dim, Dim]]:
        """(index, extent, stride) of the axes of a load."""
        return [(i, *axis) for i, axis in zip(load.args[1:], self._arrays[load.args[0]].whole, strict=True)]

    def is_inside(self, index: sympy.Expr, extent: Dim) -> bool:
        """Is it a place of its axis, so that nothing is left to check: as loops run, or as it was brought inside?"""
        if self._names.is_inside(index, extent):
            return True
        if not isinstance(index, scalar.minimum) or not isinstance(extent, int) or extent < 1:
            return False
        low, high = index.args
        is_clamped = high == extent - 1 and isinstance(low, scalar.maximum) and low.args[1] == 0
        return is_clamped and types.is_integer(scalar.Types(self._values).strong(index, dace.int64))

    def _text(self, value: ScalarValue) -> str:
        self._printer.computed, self._places = value.known, value.places
        return self._printer.text(value.expr, value.dtype)

    def _position(self, index: str, extent: Dim, stride: Dim) -> str:
        size = self._names.size_text
        return f"dop::index({index}, {size(extent)}, bad) * {size(stride)}"

    def _load(self, array: sympy.Symbol, index: Sequence[str], places: Sequence[sympy.Expr]) -> ElementLoad | str:
        """An element whose indices have the texts ``index``; a choice where its array may have no elements."""
        reference, load = self._arrays[array], scalar.load(array, *places)
        terms = [self._term(load, k, text) for k, text in enumerate(index)]
        base = self._names.address(reference)
        at = " + ".join([*terms, *([base] if base != "0" else [])])
        value = ElementLoad(f"{self._names.buffer(reference.buffer)}[{at}]", reference.buffer.dtype)
        unsure = [
            (text, extent)
            for text, (place, extent, _) in zip(index, self.axes(load))
            if (not isinstance(extent, int) or extent < 1) and not self._names.is_inside(place, extent)
        ]
        if not unsure:
            return value
        self.checks = True
        exists = " && ".join(f"{self._names.size_text(n)} > 0" for n in dict.fromkeys(n for _, n in unsure))
        missing = ", ".join(dict.fromkeys(text for text, _ in unsure))
        computed = types.cpp(types.compute_type(reference.buffer.dtype))
        return f"({expression(Ternary(exists, value, f'dop::nothing<{computed}>(bad, {missing})'))})"

    def _term(self, load: sympy.Expr, axis: int, text: str) -> str:
        """How far the element is from the array's first one because of an index."""
        index, extent, stride = self.axes(load)[axis]
        if self.is_inside(index, extent):
            return f"{text} * {self._names.size_text(stride)}"
        if (load, axis) in self._places:
            return self._places[load, axis]
        self.checks = True
        return self._position(text, extent, stride)
