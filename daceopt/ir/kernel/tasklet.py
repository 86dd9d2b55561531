"""Tasklets whose scalar computation is a list of SymPy assignments, and the edits that fusion makes on such lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dace
import sympy
from dace import nodes
from dace.properties import CodeBlock
from sympy.core.function import FunctionClass

from daceopt.ir.scalar import scalar, types

Assignments = tuple["Assignment", ...]


@dataclass(frozen=True)
class Assignment:
    """``symbol = expr``, computed and kept as ``dtype``; for a type of storage, as the type in which that is computed.

    Whoever writes an assignment may thus name the type of an array; only loads and stores see narrow types.
    """

    symbol: sympy.Symbol
    expr: sympy.Expr
    dtype: types.DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", types.compute_type(self.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> Assignment:
        return self  # immutable, as SymPy expressions are

    @cached_property
    def free_symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that its expression names."""
        return frozenset(self.expr.free_symbols)

    def subs(self, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> Assignment:
        """Replace symbols in the expression, and the assigned symbol too when it is in ``mapping``."""
        return Assignment(mapping.get(self.symbol, self.symbol), substitute(self.expr, mapping), self.dtype)

    def __str__(self) -> str:
        return f"{types.cpp(self.dtype)} {self.symbol} = {self.expr};"


class _Listing(CodeBlock):
    """The text of a tasklet for DaCe's viewer, made only when somebody looks."""

    def __init__(self, assignments: Assignments):
        self.assignments = assignments
        self.language = dace.Language.CPP

    @property
    def code(self) -> str:
        """One line for each assignment."""
        return "\n".join(map(str, self.assignments))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Listing:
        return _Listing(self.assignments)


class SymbolicTasklet(nodes.Tasklet):
    """A tasklet that computes ``assignments`` in SSA order; an output connector is the assignment symbol of that name.

    ``inputs`` maps each input connector to its dtype (``dace.pointer`` of it for arrays read by ``load``). Raises
    ``ValueError`` when the list is not in SSA order or lacks an output.
    """

    def __init__(
        self, label: str, inputs: Mapping[str, types.DType], assignments: Iterable[Assignment], outputs: Iterable[str]
    ):
        assignments, outputs = tuple(assignments), tuple(outputs)
        check_order(label, inputs, assignments, outputs)
        assigned = {str(a.symbol): a.dtype for a in assignments}
        super().__init__(label, dict(inputs), {c: assigned[c] for c in outputs}, "", dace.Language.CPP)
        self._assignments: Assignments = assignments
        self.code = _Listing(assignments)

    @property
    def assignments(self) -> Assignments:
        """The computation; replaced as a whole, never changed in place."""
        return self._assignments

    @property
    def free_symbols(self) -> set[str]:
        """Names of index parameters and sizes that the computation reads (no connectors)."""
        return {str(s) for s in free_symbols(self.assignments)} - set(self.in_connectors)

    def to_json(self, parent: object) -> Any:
        """As a plain tasklet, which DaCe's viewer knows."""
        return super().to_json(parent) | {"type": "Tasklet"}


def check_order(label: str, inputs: Iterable[str], assignments: Assignments, outputs: Iterable[str]) -> None:
    """Raise ValueError for what is not in SSA order, or lacks an output; ``inputs``, ``outputs``: connectors."""
    assigned = {a.symbol.name for a in assignments}
    if missing := [c for c in outputs if c not in assigned]:
        raise ValueError(f"tasklet {label}: output {missing[0]} is not assigned; assigned are {sorted(assigned)}")
    if len(assigned) != len(assignments) or assigned & set(inputs):
        names = [str(a.symbol) for a in assignments]
        raise ValueError(f"tasklet {label}: a symbol is assigned twice or is an input, among {names}")
    late = set(assigned)
    for a in assignments:
        if used := late & {s.name for s in a.free_symbols}:
            raise ValueError(f"tasklet {label}: {a.symbol} reads {sorted(used)[0]} before its assignment")
        late.discard(a.symbol.name)


def substitute(expr: sympy.Expr, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """Replace symbols by expressions in one simultaneous step; untouched expressions come back as they are.

    Where two symbols become one and SymPy would then cancel what is NaN for infinities, zeros or NaN (``a - b`` and
    ``a / b``), they stay apart.
    """
    if expr.is_Symbol:
        return mapping.get(expr, expr)
    hits = {s: mapping[s] for s in expr.free_symbols if s in mapping}
    if not hits:
        return expr
    twins = _twins(expr, hits)
    if twins and any(cancels(e.func, [a.xreplace(hits) for a in e.args]) for e in sympy.preorder_traversal(expr)):
        hits |= {s: scalar.apart(hits.get(s, s)) for s in twins}
    return expr.xreplace(hits)


def _twins(expr: sympy.Expr, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> list[sympy.Symbol]:
    """The symbols that become what one before them is."""
    earlier: set[sympy.Expr] = set()
    pairs = []
    for symbol in sorted(expr.free_symbols, key=str) if len(expr.free_symbols) > 1 else ():
        value = mapping.get(symbol, symbol)
        pairs += [symbol] if value in earlier else []
        earlier.add(value)
    return pairs


def cancels(function: FunctionClass, args: Sequence[sympy.Expr]) -> bool:
    """Is this a sum of terms, or a product of powers, that take one another away, wholly or in part?"""
    if function not in (sympy.Add, sympy.Mul):
        return False
    signs: dict[sympy.Expr, bool] = {}  # what is added or multiplied -> whether it is taken away
    for a in (a for a in args if not a.is_number):
        amount, what = a.as_coeff_Mul() if function is sympy.Add else reversed(a.as_base_exp())
        negative = bool(amount.could_extract_minus_sign())
        if signs.setdefault(what, negative) != negative:
            return True
    return False


def symbol_like(symbol: sympy.Symbol, name: str) -> sympy.Symbol:
    """A symbol of this name with the assumptions of ``symbol``."""
    return sympy.Symbol(name, **symbol.assumptions0) if symbol.name != name else symbol


def free_symbols(assignments: Iterable[Assignment]) -> set[sympy.Symbol]:
    """Symbols read before they are assigned: inputs, parameters, sizes."""
    free: set[sympy.Symbol] = set()
    assigned: set[sympy.Symbol] = set()
    for a in assignments:
        free |= a.free_symbols - assigned
        assigned.add(a.symbol)
    return free


def rename(assignments: Iterable[Assignment], mapping: Mapping[sympy.Symbol, sympy.Symbol]) -> Assignments:
    """Replace symbols, read or assigned, everywhere."""
    return tuple(a.subs(mapping) for a in assignments)


def fuse(
    first: Sequence[Assignment],
    second: Sequence[Assignment],
    wiring: Mapping[sympy.Symbol, sympy.Symbol],
    reserved: Iterable[str] = (),
) -> tuple[Assignments, dict[sympy.Symbol, sympy.Symbol]]:
    """``first`` followed by ``second``, whose symbols are replaced by ``wiring`` (input of second -> symbol of first).

    Symbols that ``second`` assigns get fresh names where they collide with those of ``first`` or with ``reserved``;
    returned with the assignments is the map from every symbol of ``second`` that changed to what it became.
    """
    names_in_use = {str(a.symbol) for a in first} | {str(s) for s in free_symbols(first)} | set(reserved)
    names_in_use |= {str(s) for s in free_symbols(second)}
    renaming = dict(wiring)
    for a in second:
        name = fresh(str(a.symbol), names_in_use)
        names_in_use.add(name)
        if name != str(a.symbol):
            renaming[a.symbol] = scalar.symbol(name, a.dtype)
    return (*first, *rename(second, renaming)), renaming


def fresh(name: str, names_in_use: Iterable[str]) -> str:
    """``name``, or ``name_2``, ``name_3`` ... when taken."""
    names_in_use = set(names_in_use)
    if name not in names_in_use:
        return name
    return next(c for k in range(2, len(names_in_use) + 3) if (c := f"{name}_{k}") not in names_in_use)


def eliminate_dead(assignments: Sequence[Assignment], live: Iterable[str]) -> Assignments:
    """Drop assignments that no name in ``live`` depends on."""
    needed = set(live)
    alive = []
    for a in reversed(assignments):
        if a.symbol.name in needed:
            alive.append(a)
            needed |= {s.name for s in a.free_symbols}
    return tuple(reversed(alive))


def share(
    assignments: Sequence[Assignment], dtypes: Mapping[sympy.Symbol, types.DType], keep: Iterable[str]
) -> Assignments:
    """Compute equal expressions once, across assignments; equal means structurally equal, nothing is re-associated.

    ``known`` gives the dtypes of free symbols; names in ``keep`` (outputs) stay assigned.
    """
    merged = _merge_equal(assignments, frozenset(keep))
    parents: Counter[sympy.Expr] = Counter()
    for a in merged:
        _count(a.expr, parents)
    return _Sharing(merged, dtypes, parents).run()


def _merge_equal(assignments: Sequence[Assignment], keep: frozenset[str]) -> Assignments:
    first_of: dict[tuple[sympy.Expr, str], sympy.Symbol] = {}
    renaming: dict[sympy.Symbol, sympy.Symbol] = {}
    result = []
    for a in assignments:
        expr = substitute(a.expr, renaming)
        key = (expr, types.name_of(a.dtype))
        first = first_of.setdefault(key, a.symbol)
        if first != a.symbol:
            renaming[a.symbol] = first
            if str(a.symbol) not in keep:
                continue
            expr = first
        result.append(Assignment(a.symbol, expr, a.dtype))
    return tuple(result)


def _count(expr: sympy.Expr, parents: Counter[sympy.Expr]) -> None:
    """Count the readers of every inner expression; a divisor is counted by its base, so quotients stay quotients."""
    for child in expr.args:
        if not child.args or not isinstance(child, sympy.Expr):
            continue
        parents[child] += 1
        if parents[child] == 1:
            _count(child, parents)


class _Sharing:
    """Rewrites assignments so that expressions with several readers have an assignment of their own."""

    def __init__(
        self, assignments: Assignments, dtypes: Mapping[sympy.Symbol, types.DType], parents: Counter[sympy.Expr]
    ):
        self._assignments = assignments
        self._types = dict(dtypes) | {a.symbol: a.dtype for a in assignments}
        self._infer = scalar.Types(self._types)
        self._parents = parents
        self._names_in_use = {str(s) for s in self._types} | {str(s) for s in free_symbols(assignments)}
        self._replaced: dict[sympy.Expr, sympy.Expr] = {}
        self._out: list[Assignment] = []

    def run(self) -> Assignments:
        for a in self._assignments:
            expr = self._rebuild(a.expr)
            self._out.append(Assignment(a.symbol, expr, a.dtype))
            if a.expr.args and self._infer.of(a.expr) is a.dtype:
                self._replaced.setdefault(a.expr, a.symbol)
        return tuple(self._out)

    def _rebuild(self, expr: sympy.Expr) -> sympy.Expr:
        if not expr.args or not isinstance(expr, sympy.Expr):
            return expr
        if expr in self._replaced:
            return self._replaced[expr]
        args = [self._inner(a) for a in expr.args]
        same = all(a is b for a, b in zip(args, expr.args, strict=True))
        return expr if same or cancels(expr.func, args) else expr.func(*args)

    def _inner(self, expr: sympy.Expr) -> sympy.Expr:
        if expr in self._replaced:
            return self._replaced[expr]
        rebuilt = self._rebuild(expr)
        if self._parents[expr] < 2 or not self._worth(expr):
            return rebuilt
        dtype = self._infer.strong(expr)
        symbol = scalar.symbol(fresh("t", self._names_in_use), dtype)
        self._names_in_use.add(str(symbol))
        self._out.append(Assignment(symbol, rebuilt, dtype))
        self._replaced[expr] = symbol
        return symbol

    def _worth(self, expr: sympy.Expr) -> bool:
        """Not what takes the type of its context, not a sign change, not a divisor."""
        if isinstance(self._infer.of(expr), scalar.Weak) or scalar.quotient(expr)[1:] != ([],):
            return False
        return not (expr.is_Mul and len(expr.args) == 2 and expr.args[0].is_number and expr.args[1].is_Symbol)
