"""A function whose loops stay in Python, and what is in between in functions of their own, which can be compiled.

Dynamo cannot go on behind a graph break inside of a loop: it leaves the whole function to Python. In parts, the body of
a loop is a function that is called for each iteration: ``state = part(a, b)``, where ``state`` says how the part ended
(``_ON``, ``_BREAK``, ``_CONTINUE``, ``_RETURN``) and has the variables that it has set, or the value that is returned.
A part that ends by an error gives nothing: where Python may go on behind an error, parts end with each variable that is
read there.
"""

from __future__ import annotations

import ast
import copy
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from daceopt.capture.torch import variables
from daceopt.capture.torch.function_text import FunctionText, compile_tree, text_of
from daceopt.capture.torch.own_lists import own_lists
from daceopt.torch_internals.dynamo_tracing import ExactWeakKeyDictionary

_ON, _BREAK, _RETURN, _CONTINUE = 0, 1, 2, 3
_UNBOUND = "\0 a variable without a value"
_STATE = "_daceopt_state"

_Loop = (ast.For, ast.While)
_UNSUPPORTED = (
    *(ast.AsyncFor, ast.AsyncWith, ast.Await, ast.Yield, ast.YieldFrom),
    *(ast.Global, ast.Nonlocal, ast.Delete, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
)
_LOOKING = frozenset({"super", "locals", "vars", "dir", "eval", "exec"})
_PLAIN = (
    *(ast.Return, ast.Break, ast.Continue, ast.Pass, ast.Assign, ast.AnnAssign, ast.Expr, ast.expr_context),
    *(ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Dict),
)


class _Unsplit(Exception):
    """The function has to stay as it is."""


_parts: Any = ExactWeakKeyDictionary()
"""The parts that were made, code -> text and lists (``_Splitter``): they may have to be taken apart in their turn."""


def is_in_parts(code: types.CodeType) -> bool:
    """Whether this is what ``in_parts`` gave for some function."""
    return _STATE in code.co_varnames


def in_parts(code: types.CodeType) -> types.CodeType | None:
    """The same function in parts; None where it has no loop, or its text is not known or has what parts cannot have."""
    try:
        return _in_parts(code)
    except (_Unsplit, LookupError, SyntaxError, ValueError):  # text that is gone, or is not that of the code
        return None


def _in_parts(code: types.CodeType) -> types.CodeType:
    text, lists = _parts.get(code) or (text_of(code), None)
    text = text.of(text.tree, text.free)
    split = _Splitter(text, own_lists(text.tree) if lists is None else lists)
    split.run()
    compiled = compile_tree(text.of(split.tree, text.free), code)
    if compiled.co_freevars != code.co_freevars:
        raise _Unsplit
    parts = [c for c in compiled.co_consts if isinstance(c, types.CodeType) and c.co_name in split.parts]
    if not all(set(part.co_freevars) <= set(text.free) for part in parts):
        raise _Unsplit
    named = {part: part.replace(co_name=code.co_name) for part in parts}
    for part, own in named.items():
        tree, lists = split.parts[part.co_name]
        _parts[own] = (text.of(tree, part.co_freevars), lists)
    constants = [named.get(c, c) if isinstance(c, types.CodeType) else c for c in compiled.co_consts]
    return compiled.replace(co_consts=tuple(constants))


def _is_open(statement: ast.AST) -> bool:
    """Whether it holds a loop or a try, and therefore stays in Python itself."""
    return any(isinstance(n, (*_Loop, ast.Try)) for n in variables.nodes(statement))


def _is_plain(statement: ast.stmt) -> bool:
    """Nothing that a compiler could do better."""
    return all(isinstance(n, _PLAIN) for n in variables.nodes(statement))


class _Exits(ast.NodeTransformer):
    """How a part is left: ``break`` and ``continue`` of the loop around it, and ``return``, as values of the part."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs, self._depth, self.kinds = outputs, 0, set[int]()

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        self.kinds.add(_RETURN)
        return ast.copy_location(_state(_RETURN, [node.value or ast.Constant(None)]), node)

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return node if self._depth else self._exit(_BREAK, node)

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return node if self._depth else self._exit(_CONTINUE, node)

    def _exit(self, kind: int, node: ast.stmt) -> ast.stmt:
        self.kinds.add(kind)
        return ast.copy_location(_state(kind, [ast.Name(n, ast.Load()) for n in self._outputs]), node)

    def _inner(self, node: Any) -> ast.AST:
        self._depth += 1
        node.body = [self.visit(s) for s in node.body]
        self._depth -= 1
        node.orelse = [self.visit(s) for s in node.orelse]
        return node

    visit_For = visit_While = _inner

    def visit_Try(self, node: ast.Try) -> ast.AST:
        if variables.stores(node.finalbody) & set(self._outputs) and _goes_on(node):
            raise _Unsplit  # a part would be left with what they were before
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node


def _state(kind: int, values: Sequence[ast.expr]) -> ast.Return:
    return ast.Return(ast.Tuple([ast.Constant(kind), *values], ast.Load()))


def _goes_on(node: ast.AST) -> bool:
    """Whether a loop around it, or one in it, may be left or go on from there."""
    return any(isinstance(n, ast.Break | ast.Continue) for n in variables.nodes(node))


@dataclass
class _Splitter:
    """Takes one function apart; ``tree`` is what it becomes, ``parts`` the trees of its parts by their names, each with
    its ``lists``: those that nobody knows by another name."""

    text: FunctionText
    lists: frozenset[str]
    parts: dict[str, tuple[ast.FunctionDef, frozenset[str]]] = field(default_factory=dict)
    tree: ast.FunctionDef = field(init=False)
    _live: set[str] = field(default_factory=set)  # variables that may be read behind an error in these statements

    def run(self) -> None:
        function = self.text.tree
        _check(function)
        if not any(map(_is_open, function.body)):
            raise _Unsplit
        arguments = [a.arg for a in variables.parameters(function.args)]
        caught = [n.name for n in variables.nodes(function.body) if isinstance(n, ast.ExceptHandler) and n.name]
        self._locals = {*arguments, *caught, *variables.stores(function.body)}
        self._readers = Counter(variables.names(function.body).read)
        self._late: set[str] = set()  # variables that may have no value where a part takes them
        body = self._block(function.body, set(arguments))
        absent = [_assignment([name], ast.Constant(_UNBOUND)) for name in sorted(self._late)]
        self.tree = ast.FunctionDef(function.name, function.args, [*absent, *body], [], None)
        ast.copy_location(self.tree, function)

    def _block(self, statements: Sequence[ast.stmt], bound: set[str]) -> list[ast.stmt]:
        """The statements in parts; ``bound``, to which is added: variables that have a value for sure."""
        statements_after: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for s in statements:
            if _is_open(s) or not variables.set_only_last([s], self._live):
                statements_after += self._part(run, bound)
                run = []
                statements_after.append(self._open(s, bound))
                bound |= variables.certain([s])
                continue
            run.append(s)
            if variables.stores(s) & self._live:
                statements_after += self._part(run, bound)
                run = []
        return [*statements_after, *self._part(run, bound)]

    def _open(self, s: ast.stmt, bound: set[str]) -> ast.stmt:
        """A statement whose blocks are in parts."""
        copied = ast.copy_location(type(s)(**dict(ast.iter_fields(s))), s)
        if isinstance(copied, ast.For | ast.While):
            self._check_bound(copied.iter if isinstance(copied, ast.For) else copied.test, bound)
            inside = bound | (variables.stores(copied.target) if isinstance(copied, ast.For) else set())
            copied.body = self._body(copied.body, inside)
        elif isinstance(copied, ast.If):
            self._check_bound(copied.test, bound)
            copied.body = self._block(copied.body, set(bound))
        elif isinstance(copied, ast.With):
            self._check_bound([i.context_expr for i in copied.items], bound)
            with self._behind_errors(self._known_outside(copied.body) if variables.may_go_on(copied) else None):
                copied.body = self._block(copied.body, bound | variables.stores(copied.items))
        elif isinstance(copied, ast.Try):
            self._open_try(copied, bound)
        else:
            raise _Unsplit
        if isinstance(copied, ast.For | ast.While | ast.If):
            copied.orelse = self._block(copied.orelse, set(bound))
        return copied

    def _open_try(self, statement: ast.Try, bound: set[str]) -> None:
        last = variables.read(statement.finalbody)
        ends = all(variables.leaves(h.body) for h in statement.handlers)
        with self._behind_errors(
            variables.read(statement.handlers) | last if ends else self._known_outside(statement.body)
        ):
            statement.body = self._block(statement.body, set(bound))
        with self._behind_errors(last):
            for handler in statement.handlers:
                own = {handler.name} if handler.name else set()
                if handler.type is not None:
                    self._check_bound(handler.type, bound)
                handler.body = self._block(handler.body, bound | own)
            statement.orelse = self._block(statement.orelse, set(bound))
        statement.finalbody = self._block(statement.finalbody, set(bound))

    @contextmanager
    def _behind_errors(self, read: set[str] | None) -> Iterator[None]:
        """What is taken apart meanwhile may raise an error, behind which these variables are read; None: it ends the
        function."""
        before = self._live, self.lists
        if read is not None:
            self._live, self.lists = self._live | read, frozenset()
        yield
        self._live, self.lists = before

    def _known_outside(self, statements: Sequence[ast.stmt]) -> set[str]:
        """Variables that these statements set, and others or their next run may read."""
        inner, first = Counter(variables.names(statements).read), variables.read_first(statements)
        return {n for n in variables.stores(statements) if self._readers[n] > inner[n] or n in first}

    def _check_bound(self, of: ast.AST | Sequence[ast.AST], bound: set[str]) -> None:
        if (variables.read(of) & self._locals) - bound:
            raise _Unsplit

    def _body(self, statements: Sequence[ast.stmt], bound: set[str]) -> list[ast.stmt]:
        """One part, which gives what is added to lists: a program that takes a list is for one length of it. Several
        where what it sets is read behind an error."""
        if self._live & variables.stores(statements):
            return self._block(statements, bound)
        added: dict[str, ast.stmt] = {}
        run = list(statements)
        for k, s in enumerate(_without_exits(run)):
            value = self._addition(s, run)
            if value is not None:
                name = f"_daceopt_added_{k}"
                run[k] = ast.copy_location(_assignment([name], value), s)
                added[name] = ast.copy_location(_with_variable(s, name), s)
        return self._plain(run, statements, bound) or self._part(run, bound, added)

    def _plain(self, run: Sequence[ast.stmt], stay: Sequence[ast.stmt], bound: set[str]) -> list[ast.stmt]:
        """``stay`` where ``run`` is nothing for a compiler; else nothing."""
        if not all(map(_is_plain, run)) or (variables.read(run) & self._locals) - bound:
            return []
        bound |= variables.certain(run)
        return list(stay)

    def _addition(self, s: ast.stmt, run: Sequence[ast.stmt]) -> ast.expr | None:
        """The value of a statement ``name.append(value)``, where nothing else in the part knows the list."""
        call = s.value if isinstance(s, ast.Expr) else None
        if not (isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords):
            return None
        of = call.func
        if not (isinstance(of, ast.Attribute) and of.attr == "append" and isinstance(of.value, ast.Name)):
            return None
        name, names = of.value.id, variables.names(run)
        is_used = names.read.count(name) > 1 or name in names.stored or isinstance(call.args[0], ast.Starred)
        returns = any(isinstance(n, ast.Return) for n in variables.nodes(run))
        return None if is_used or returns or name not in self.lists else call.args[0]

    def _part(
        self, run: Sequence[ast.stmt], bound: set[str], added: Mapping[str, ast.stmt] | None = None
    ) -> list[ast.stmt]:
        """A call of a function with these statements. ``added``: what Python does behind it, with these results."""
        plain = self._plain(run, run, bound)
        if plain or not run:
            return plain
        first = variables.read_first(run) & self._locals
        certain = variables.certain(_without_exits(run))
        later = self._known_outside(run) & self._locals
        takes = sorted(first | (later - certain))
        late = {n for n in takes if n not in bound}
        self._late |= late
        if late & first & (later - certain):
            raise _Unsplit  # whether it has a value at the end is not known
        call = self._define(list(run), takes, sorted(later), sorted(late & first), added or {})
        bound |= certain & later
        return call

    def _define(
        self,
        run: list[ast.stmt],
        takes: list[str],
        sets: list[str],
        late: list[str],
        added: Mapping[str, ast.stmt],
    ) -> list[ast.stmt]:
        gives = [*sets, *added]
        exits = _Exits(gives)
        body = [exits.visit(s) for s in run]
        if not variables.leaves(body):
            body.append(_state(_ON, [ast.Name(n, ast.Load()) for n in gives]))
        name = f"{self.text.tree.name}_{len(self.parts) + 1}"
        if name in self._locals or name in self._readers:
            raise _Unsplit
        unset = [_parse(f"if type({n}) is str and {n} == {_UNBOUND!r}: del {n}") for n in late]
        arguments = ast.arguments([], [ast.arg(n) for n in takes], None, [], [], None, [])
        part = ast.FunctionDef(name, arguments, [*unset, *body], [], None)
        self.parts[name] = (part, self.lists)
        call = f"{name}({', '.join(takes)})"
        is_last = exits.kinds == {_RETURN} and isinstance(run[-1], ast.Return)
        statements = [
            part,
            *([_parse(f"return {call}[1]")] if is_last else _call_part(call, gives, exits.kinds, added)),
        ]
        return [ast.copy_location(s, run[0]) for s in statements]


def _call_part(call: str, gives: list[str], kinds: set[int], added: Mapping[str, ast.stmt]) -> list[ast.stmt]:
    """Call a part, and leave as it was left."""
    statements = [_parse(f"{_STATE} = {call}")]
    if _RETURN in kinds:
        statements.append(_parse(f"if {_STATE}[0] == {_RETURN}: return {_STATE}[1]"))
    statements.append(_parse(f"{', '.join([_STATE, *gives])}, = {_STATE}"))
    statements += added.values()
    statements += [_parse(f"if {_STATE} == {kind}: {word}") for kind, word in _LEFT.items() if kind in kinds]
    return statements


_LEFT = {_BREAK: "break", _CONTINUE: "continue"}


def _with_variable(s: ast.stmt, name: str) -> ast.stmt:
    """The statement ``s`` that adds to a list, with a variable for what it adds."""
    statement = copy.deepcopy(cast("ast.Expr", s))
    cast("ast.Call", statement.value).args = [ast.Name(name, ast.Load())]
    return statement


def _without_exits(statements: Sequence[ast.stmt]) -> Sequence[ast.stmt]:
    """Those before the first that may leave, or go on with, the loop around them."""
    for k, s in enumerate(statements):
        if any(isinstance(n, ast.Break | ast.Continue) for n in variables.nodes(s)):
            return statements[:k]
    return statements


def _parse(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _assignment(names: Sequence[str], value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(n, ast.Store()) for n in names], value)


def _check(function: ast.FunctionDef) -> None:
    """Raises _Unsplit for what a part cannot have: functions that see the variables of the whole, above all."""
    stored = variables.stores(function.body) | {a.arg for a in variables.parameters(function.args)}
    for node in variables.nodes(function.body):
        if isinstance(node, _UNSUPPORTED) or (isinstance(node, ast.Name) and node.id in _LOOKING):
            raise _Unsplit
        if isinstance(node, ast.ExceptHandler) and node.name in stored:
            raise _Unsplit
    called = {a for n in variables.nodes(function.body) if isinstance(n, ast.Call) for a in n.args}
    for node in variables.nodes(function.body):
        is_kept = isinstance(node, ast.Lambda) or (isinstance(node, ast.GeneratorExp) and node not in called)
        if is_kept and variables.read(node) & stored:
            raise _Unsplit
