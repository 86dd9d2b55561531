"""A schedule as a program that people read, and back.

    parallel for i0 < 128 when 4096*n >= 32768:
      accumulate s0.out:
        for i1_block < (n + 31) // 32:
          vector for i1 < 32, n - 32*i1_block:
            s0(i0, 32*i1_block + i1)

``for p < extent, rest`` ends at the smaller of both; ``s0(...)`` is statement 0 with the values of its parameters;
``accumulate`` names a statement and the connector that it writes, ``own`` one in the type of the write, ``warp`` and
``block`` one that lanes or the threads of a block collect together; ``call product:`` hands the loops below it to a
micro-kernel; ``if (i0 + 1) % 2 == 0 and i1 < n:`` guards what is in it.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sympy

from daceopt.errors import Unsupported
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.functions import idiv, pymod
from daceopt.ir.scalar.symbols import Parameter, size
from daceopt.ir.schedule.conditions import relation
from daceopt.ir.schedule.schedule import (
    KINDS,
    SCOPES,
    Accumulate,
    Alloc,
    Call,
    Do,
    Guard,
    Loop,
    Partial,
    Sequence,
    Tree,
)

_INDENT = "  "
_MAX_LENGTH = 1000
_MAX_EXPONENT = 16
_LOOP = re.compile(r"(?:(?P<kind>[a-z ]+) )?for (?P<param>\w+) < (?P<extent>.+?)(?: when (?P<when>.+))?:")
_ACCUMULATE = re.compile(r"accumulate (?P<private>private )?((?P<across>warp|block) )?(?P<own>own )?(?P<partials>.+):")
_ALLOC = re.compile(r"local (?P<array>\w+) in (?P<scope>\w+):")
_CALL = re.compile(r"call (?P<microkernel>\w+):")
_GUARD = re.compile(r"if (?P<condition>.+):")
_DO = re.compile(r"s(?P<statement>\d+)\((?P<index>.*)\)")
_OPERATORS: dict[type, str] = {ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "=="}


def text(tree: Tree) -> str:
    """One line per node, indented by what it is in; :func:`parse` reads it."""
    return "\n".join(_lines(tree, "")) + "\n"


def line_of(node: Tree) -> str:
    """The line of the program that ``node``, which is no sequence, begins with."""
    return next(_lines(node, ""))


def _lines(tree: Tree, indent: str) -> Iterator[str]:
    if isinstance(tree, Sequence):
        for child in tree.children:
            yield from _lines(child, indent)
        return
    yield indent + _head(tree)
    if not isinstance(tree, Do):
        yield from _lines(tree.body, indent + _INDENT)


def _head(tree: Loop | Accumulate | Alloc | Call | Guard | Do) -> str:
    if isinstance(tree, Do):
        return f"s{tree.statement}({', '.join(map(expression, tree.index))})"
    if isinstance(tree, Alloc):
        return f"local {tree.array} in {tree.scope}:"
    if isinstance(tree, Call):
        return f"call {tree.microkernel}:"
    if isinstance(tree, Guard):
        return f"if {_conjunction(tree.condition)}:"
    if isinstance(tree, Accumulate):
        own = "" if tree.partials[0].wide else "own "
        names = ", ".join(f"s{p.statement}.{p.connector}" for p in tree.partials)
        how = f"{'private ' if tree.private else ''}{tree.across}{' ' if tree.across else ''}"
        return f"accumulate {how}{own}{names}:"
    kind = "" if tree.kind == "serial" else f"{tree.kind} "
    rest = "" if tree.rest is None else f", {expression(tree.rest)}"
    when = "" if tree.when is None else f" when {_relation(tree.when)}"
    return f"{kind}for {tree.param} < {expression(tree.extent)}{rest}{when}:"


def _relation(relation: sympy.Basic) -> str:
    return f"{expression(relation.lhs)} {relation.rel_op} {expression(relation.rhs)}"


def _conjunction(condition: tuple[sympy.Basic, ...]) -> str:
    """Neighbours with a side in common are one interval: ``a <= p < b``."""
    shown = _relation(condition[0])
    for before, c in itertools.pairwise(condition):
        joined = before.rhs == c.lhs and {before.rel_op, c.rel_op} <= {"<", "<="}
        shown += f" {c.rel_op} {expression(c.rhs)}" if joined else f" and {_relation(c)}"
    return shown


def expression(expr: Dim) -> str:
    """Integer arithmetic in Python's notation; quotients are whole."""
    if isinstance(expr, int) or expr.is_Symbol or expr.is_Integer:
        return str(expr)
    if isinstance(expr, (idiv, pymod)):
        sign = "//" if isinstance(expr, idiv) else "%"
        return f"{_operand(expr.args[0])} {sign} {_operand(expr.args[1])}"
    if isinstance(expr, (sympy.Min, sympy.Max)):
        return f"{type(expr).__name__.lower()}({', '.join(map(expression, expr.args))})"
    if isinstance(expr, sympy.floor):
        above, below = sympy.together(expr.args[0]).as_numer_denom()
        return f"{_operand(above)} // {_operand(below)}"
    if isinstance(expr, (sympy.Add, sympy.Mul, sympy.Pow)):
        parts = sorted(expr.atoms(idiv, pymod, sympy.floor, sympy.Min, sympy.Max), key=str)
        names = {part: sympy.Dummy(f"part{k:04d}") for k, part in enumerate(parts)}  # in one order in every process
        shown = str(expr.xreplace(names))
        for part, name in names.items():
            call = isinstance(part, (sympy.Min, sympy.Max))
            shown = shown.replace(str(name), expression(part) if call else f"({expression(part)})")
        return shown
    raise Unsupported(f"no text for {expr} in a schedule")


def _operand(expr: sympy.Expr) -> str:
    code = expression(expr)
    plain = isinstance(expr, int) or expr.is_Symbol or expr.is_Integer or isinstance(expr, idiv)
    return code if plain else f"({code})"


# ---------------------------------------------------------------- reading


def parse(source: str, loops: Iterable[str] = ()) -> Tree:
    """The schedule that :func:`text` wrote.

    ``loops``: names of parameters whose loops stand outside of ``source``; others without a loop are sizes. Raises
    Unsupported with the line that is no part of a schedule.
    """
    lines = [line for line in source.splitlines() if line.strip()]
    names = {match["param"] for line in lines if (match := _LOOP.fullmatch(line.strip()))}.union(loops)
    reader = _Reader(lines, names)
    tree = reader.block(0)
    if reader.at < len(lines):
        raise Unsupported(f"line {reader.at + 1} of a schedule, {lines[reader.at]!r}: its indentation fits no loop")
    return tree


class _Reader:
    def __init__(self, lines: list[str], loops: set[str]):
        self._lines, self._loops = lines, loops
        self.at = 0

    def block(self, depth: int) -> Tree:
        """All that is at ``depth`` from here on."""
        trees: list[Tree] = []
        while self.at < len(self._lines) and _depth(self._lines[self.at]) == depth:
            trees.append(self._node(depth))
        if not trees:
            raise Unsupported(f"line {self.at + 1} of a schedule: expected a body, indented by {depth + 1} levels")
        return trees[0] if len(trees) == 1 else Sequence(tuple(trees))

    def _node(self, depth: int) -> Tree:
        line = self._lines[self.at].strip()
        self.at += 1
        if match := _DO.fullmatch(line):
            return Do(int(match["statement"]), tuple(self._list(match["index"])))
        if match := _LOOP.fullmatch(line):
            return self._loop(match, depth)
        if match := _ACCUMULATE.fullmatch(line):
            partials = tuple(self._partial(p, not match["own"], line) for p in match["partials"].split(", "))
            return Accumulate(partials, self.block(depth + 1), bool(match["private"]), match["across"] or "")
        if match := _CALL.fullmatch(line):
            return Call(match["microkernel"], self.block(depth + 1))
        if match := _GUARD.fullmatch(line):
            return Guard(self._evaluate(match["condition"], sizes=False), self.block(depth + 1))
        match = _ALLOC.fullmatch(line)
        if match and match["scope"] in SCOPES:
            return Alloc(match["array"], match["scope"], self.block(depth + 1))
        expected = "a loop, a local, a guard, accumulators, a call or a statement"
        raise Unsupported(f"line {self.at} of a schedule, {line!r}: expected {expected}")

    def _loop(self, match: re.Match[str], depth: int) -> Tree:
        kind = match["kind"] or "serial"
        if kind not in KINDS:
            raise Unsupported(f"line {self.at} of a schedule: a {kind} loop; expected one of {', '.join(KINDS)}")
        extent, *rest = (dim(e) for e in self._list(match["extent"], sizes=True))
        when = None if match["when"] is None else self._evaluate(match["when"], sizes=True)
        return Loop(self._symbol(match["param"]), extent, self.block(depth + 1), kind, rest[0] if rest else None, when)

    def _symbol(self, name: str) -> sympy.Symbol:
        return Parameter(name) if name in self._loops else size(name)

    @staticmethod
    def _partial(name: str, wide: bool, line: str) -> Partial:
        parts = re.fullmatch(r"s(\d+)\.(\w+)", name)
        if not parts:
            raise Unsupported(f"{line!r} in a schedule: expected statements and connectors such as s0.out")
        return Partial(int(parts[1]), parts[2], wide)

    def _list(self, code: str, sizes: bool = False) -> list[Any]:
        values = self._evaluate(f"({code},)" if code else "()", sizes)
        return list(values)

    def _evaluate(self, code: str, sizes: bool) -> Any:
        try:
            if len(code) > _MAX_LENGTH:
                raise ValueError("too long")
            return self._value(ast.parse(code, mode="eval").body, sizes)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Unsupported(f"{code[:80]!r} in a schedule: expected integer arithmetic over names") from error

    def _value(self, node: ast.expr, sizes: bool) -> Any:
        if isinstance(node, ast.Name):
            return self._symbol(node.id)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return sympy.Integer(node.value)
        if isinstance(node, ast.Tuple):
            return tuple(self._value(e, sizes) for e in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._value(node.operand, sizes)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            extreme = sympy.Min if node.func.id == "min" else sympy.Max
            return extreme(*(self._value(a, sizes) for a in node.args), evaluate=False)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return tuple(c for part in node.values for c in _conjuncts(self._value(part, sizes)))
        if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
            sides = [self._value(side, sizes) for side in (node.left, *node.comparators)]
            relations = [relation(a, _OPERATORS[type(op)], b) for a, op, b in zip(sides, node.ops, sides[1:])]
            return relations[0] if len(relations) == 1 else tuple(relations)
        if isinstance(node, ast.BinOp):
            return self._binary(node, sizes)
        raise ValueError(ast.dump(node)[:80])

    def _binary(self, node: ast.BinOp, sizes: bool) -> sympy.Expr:
        left, right = self._value(node.left, sizes), self._value(node.right, sizes)
        counted = bool({str(s) for s in left.free_symbols} & self._loops)
        if isinstance(node.op, ast.FloorDiv):
            whole = (sizes and not counted) or self._is_size(left)
            return sympy.floor(left / right) if whole else idiv(left, right)
        if isinstance(node.op, ast.Mod) and (counted or not sizes):
            return pymod(left, right)
        if isinstance(node.op, ast.Pow) and right.is_Integer and 0 <= right <= _MAX_EXPONENT:
            return left**right
        plain = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}.get(type(node.op))
        if plain is None:
            raise ValueError(ast.dump(node)[:80])
        return plain(left, right)

    def _is_size(self, expr: sympy.Expr) -> bool:
        """Sizes are divided as extents are, statements' parameters as scalar code is."""
        names = {str(s) for s in expr.free_symbols}
        return bool(names) and not names & self._loops


def _conjuncts(condition: sympy.Basic) -> tuple[sympy.Basic, ...]:
    return condition if isinstance(condition, tuple) else (condition,)


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip())) // len(_INDENT)
