"""The text of a function whose code is at hand, as a tree that may be changed and compiled again."""

from __future__ import annotations
import __future__

import ast
import copy
import linecache
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from daceopt.capture.torch.variables import parameters

_FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


@dataclass
class FunctionText:
    """A function's text as a tree, and what its code depends on beside it: the variables of functions around it that it
    reads, the names that its file imports, and the class that it is in, or ""."""

    tree: ast.FunctionDef
    free: tuple[str, ...]
    imported: tuple[str, ...]
    owner: str

    def of(self, tree: ast.FunctionDef, free: tuple[str, ...]) -> FunctionText:
        """Another function at the same place."""
        return FunctionText(copy.deepcopy(tree), free, self.imported, self.owner)


def text_of(code: types.CodeType) -> FunctionText:
    """The text of the function that has this code. ValueError, LookupError or SyntaxError where it is not there, or
    gives other code: what runs is not what is read."""
    file = _parsed_file("".join(linecache.getlines(code.co_filename)))
    function, owner = file.functions[code.co_firstlineno, code.co_name]
    function = copy.deepcopy(function)
    function.decorator_list, function.returns = [], None
    function.args.defaults, function.args.kw_defaults = [], [None] * len(function.args.kwonlyargs)
    for argument in parameters(function.args):
        argument.annotation = None
    text = FunctionText(function, code.co_freevars, file.imported, owner)
    if not _is_same(compile_tree(text, code), code):
        raise ValueError(f"{code.co_name} is not what {code.co_filename} says")
    return text


class _File(ast.NodeVisitor):
    """The functions of a file by first line and name, each with the class that it is in, and what is imported."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[tuple[int, str], tuple[ast.FunctionDef, str]] = {}
        self.imported: tuple[str, ...] = ()
        self._owner, self._inside = "", False
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self.functions[first, node.name] = (node, self._owner)
        self._enter(node, self._owner)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node, node.name)

    def _enter(self, node: ast.AST, owner: str) -> None:
        before, self._owner, self._inside = (self._owner, self._inside), owner, True
        self.generic_visit(node)
        self._owner, self._inside = before

    def visit_alias(self, node: ast.alias) -> None:
        if not self._inside and node.name != "*":
            self.imported += ((node.asname or node.name).partition(".")[0],)


@lru_cache(8)
def _parsed_file(text: str) -> _File:
    return _File(ast.parse(text))


def compile_tree(text: FunctionText, code: types.CodeType) -> types.CodeType:
    """The code of a tree, in a file and among functions around it as it expects them."""
    imports = f"import {', '.join(text.imported)}\n" if text.imported else ""
    module = ast.parse(f"{imports}def around({', '.join(text.free)}):\n class {text.owner or 'none'}: pass")
    outer = cast("ast.FunctionDef", module.body[-1])
    inner = cast("ast.ClassDef", outer.body[0])
    inner.body = [text.tree]
    names = ["around", inner.name] if text.owner else ["around"]
    outer.body = [inner] if text.owner else [text.tree]
    ast.fix_missing_locations(module)
    compiled = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURES, dont_inherit=True)
    for name in [*names, text.tree.name]:
        compiled = next(c for c in compiled.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return compiled


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    kinds = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars")
    if any(getattr(one, kind) != getattr(other, kind) for kind in kinds):
        return False
    pairs = list(zip(one.co_consts, other.co_consts))
    return len(one.co_consts) == len(other.co_consts) and all(_is_same_constant(a, b) for a, b in pairs)


def _is_same_constant(one: object, other: object) -> bool:
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):
        return _is_same(one, other)
    return type(one) is type(other) and repr(one) == repr(other)
