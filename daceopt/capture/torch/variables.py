"""Which variables statements of Python read and set."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any


def parameters(args: ast.arguments) -> list[ast.arg]:
    """All of them, in the order in which they are written but for those of any number, which are last."""
    several = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *several]


def nodes(of: ast.AST | Iterable[ast.AST]) -> list[ast.AST]:
    """All nodes of a tree or of several."""
    return list(ast.walk(of)) if isinstance(of, ast.AST) else [n for x in of for n in ast.walk(x)]


class VariableNames(ast.NodeVisitor):
    """Variables of a function that are read and set, without those of comprehensions and lambdas inside of it."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.stored: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read.append(node.id)
        else:
            self.stored.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read.append(node.target.id)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.stored.add((node.asname or node.name).partition(".")[0])

    def _visit_pattern(self, node: Any) -> None:
        names = [getattr(node, "name", None), getattr(node, "rest", None)]
        self.stored.update(name for name in names if name)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = _visit_pattern

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        inner = VariableNames()
        inner.generic_visit(node)
        self.read += [name for name in inner.read if name != node.name]
        self.stored |= inner.stored

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._visit_scope([node.body], {a.arg for a in parameters(node.args)} | _walruses(node.body))

    def _visit_comprehension(self, node: Any) -> None:
        first, *others = node.generators
        self.visit(first.iter)
        own = stores([g.target for g in node.generators])
        values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._visit_scope([*values, *first.ifs, *others], own)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _visit_scope(self, inside: Sequence[ast.AST], own: set[str]) -> None:
        """What is where ``own`` are other variables; what ``:=`` sets in a comprehension is set around it."""
        inner = names(inside)
        self.read += [name for name in inner.read if name not in own]
        self.stored |= inner.stored - own


def names(of: ast.AST | Iterable[ast.AST]) -> VariableNames:
    """What a tree or several read, with each place where they do, and what they set."""
    visitor = VariableNames()
    for node in [of] if isinstance(of, ast.AST) else of:
        visitor.visit(node)
    return visitor


def stores(of: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Variables that are set."""
    return names(of).stored


def read(of: ast.AST | Iterable[ast.AST]) -> set[str]:
    """Variables that are read."""
    return set(names(of).read)


def certain(statements: Sequence[ast.stmt]) -> set[str]:
    """Variables that have a value behind the statements, wherever these are left at their end."""
    sure: set[str] = set()
    for s in statements:
        if isinstance(s, ast.If):
            branches = [certain(b) for b in (s.body, s.orelse) if not leaves(b)]
            sure |= set.intersection(*branches) if branches else set()
        elif isinstance(s, ast.With):
            own = stores([i.optional_vars for i in s.items if i.optional_vars is not None])
            sure |= own | (set() if may_go_on(s) else certain(s.body))
        elif isinstance(s, ast.Assign | ast.AugAssign | ast.Import | ast.ImportFrom):
            sure |= stores(s) - _walruses(s)
        elif isinstance(s, ast.AnnAssign) and s.value is not None:
            sure |= stores(s.target)
    return sure


def _walruses(of: ast.AST) -> set[str]:
    """What an expression sets, which may be in a part of it that does not run."""
    return stores([n.target for n in nodes(of) if isinstance(n, ast.NamedExpr)])


_PASSING = {
    "nullcontext",
    "no_grad",
    "enable_grad",
    "set_grad_enabled",
    "autocast",
    "inference_mode",
    "record_function",
}
"""Names of context managers that let errors pass."""


def may_go_on(statement: ast.With) -> bool:
    """Whether Python may go on behind the statement though an error was raised in it: ``contextlib.suppress``, say."""
    calls = [i.context_expr for i in statement.items]
    return not all(isinstance(c, ast.Call) and _last_name(c.func) in _PASSING for c in calls)


def _last_name(of: ast.expr) -> str:
    """``c`` of ``a.b.c``."""
    return of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""


def set_only_last(statements: Sequence[ast.stmt], live: set[str]) -> bool:
    """Whether nothing that may raise an error runs behind what sets one of the variables ``live``."""
    *before, last = statements
    if stores(before) & live:
        return False
    if isinstance(last, ast.If):
        return not stores(last.test) & live and all(set_only_last(b, live) for b in (last.body, last.orelse) if b)
    if isinstance(last, ast.With):
        return not stores(last.items) & live and set_only_last(last.body, live)
    return isinstance(last, ast.Assign | ast.AugAssign | ast.AnnAssign) or not stores(last) & live


def leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing goes on behind the statements."""
    return bool(statements) and isinstance(statements[-1], ast.Return | ast.Raise | ast.Break | ast.Continue)


def read_first(statements: Sequence[ast.stmt]) -> set[str]:
    """Variables that may be read before the statements have set them."""
    sure: set[str] = set()
    early: set[str] = set()
    for s in statements:
        if isinstance(s, ast.If):
            early |= (read(s.test) | read_first(s.body) | read_first(s.orelse)) - sure
        elif isinstance(s, ast.With):
            early |= (read([i.context_expr for i in s.items]) | read_first(s.body)) - sure
        elif isinstance(s, ast.For):
            own = stores(s.target)
            early |= (read(s.iter) | (read_first(s.body) - own) | read_first(s.orelse)) - sure
        else:
            early |= read(s) - sure
        sure |= certain([s])
    return early
