"""Nothing stands in the house that nobody uses: all that it defines is named somewhere besides its tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

from tests.test_import_layers import CODE, HOUSE, ROOT, sources, tree_of

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# decorators that leave a function to be called by its name; any other one hands it to somebody who calls it
PLAIN = {
    *("property", "cached_property", "staticmethod", "classmethod", "cache", "lru_cache", "contextmanager"),
    *("dataclass", "overload", "setter"),
}
PATH = re.compile(r"[A-Za-z_][\w.:]*")  # "module:function", and what a table says of names
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/architecture.md")


class Place(NamedTuple):
    """A definition, the class around it, and its file and line."""

    node: Definition
    owner: ast.ClassDef | None
    where: str


def _definitions(tree: ast.AST, path: str, owner: ast.ClassDef | None = None) -> Iterator[Place]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield Place(node, owner, f"{path}:{node.lineno}")
            yield from _definitions(node, path, node if isinstance(node, ast.ClassDef) else None)
        elif not isinstance(node, ast.expr):
            yield from _definitions(node, path, owner)


@cache
def _places() -> tuple[Place, ...]:
    files = sources(*(str(folder.relative_to(ROOT)) for folder in HOUSE.values()))
    return tuple(p for file in files for p in _definitions(tree_of(file), str(file.relative_to(ROOT))))


def _uses(tree: ast.AST) -> Iterator[str]:
    """Names that code reads, imports under another name, or has in a string that is a name or path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
            yield from re.findall(r"\w+", node.value)


@cache
def _named() -> frozenset[str]:
    used = {name for file in sources(*CODE, "examples") for name in _uses(tree_of(file))}
    texts = [*(ROOT / name for name in DOCUMENTS)]
    texts += [
        *(page for folder in ("rooms", "extending", "how-to") for page in (ROOT / "docs" / folder).glob("*.md")),
        *(ROOT / "notebooks").glob("*.ipynb"),
        *(ROOT / "daceopt").rglob("*.cpp"),
        *(ROOT / "daceopt").rglob("*.h"),
    ]
    return frozenset(used.union(*(re.findall(r"\w+", text.read_text(encoding="utf-8")) for text in texts)))


def _is_handed_over(node: Definition) -> bool:
    """Does a decorator take it that may call it?"""
    names = {ast.unparse(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] for d in node.decorator_list}
    return bool(names - PLAIN)


@cache
def _foreign() -> frozenset[str]:
    """Classes with a base that is not of the house: somebody else calls their methods."""
    bases = {
        p.node.name: {ast.unparse(b).partition("[")[0].rpartition(".")[2] for b in p.node.bases}
        for p in _places()
        if isinstance(p.node, ast.ClassDef)
    }
    foreign = {name for name, own in bases.items() if own - bases.keys() - {"Generic", "Protocol", "NamedTuple"}}
    while more := {name for name, own in bases.items() if own & foreign} - foreign:
        foreign |= more
    return frozenset(foreign)


def _is_chosen_by_name(node: Definition, owner: ast.ClassDef) -> bool:
    """Does a method of its class look up ``getattr(self, f"_{...}")`` with the beginning of its name?"""
    prefixes = [
        call.args[1].values[0].value
        for call in ast.walk(owner)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "getattr"
        if isinstance(call.args[1], ast.JoinedStr) and isinstance(call.args[1].values[0], ast.Constant)
    ]
    return any(node.name.startswith(str(prefix)) for prefix in prefixes)


def _has_other_callers(place: Place) -> bool:
    """Does somebody call it whom no name in code of the house shows?"""
    node, owner = place.node, place.owner
    if node.name.startswith(("__", "_repr_")) or _is_handed_over(node):
        return True
    if owner is not None:
        return owner.name in _foreign() or _is_chosen_by_name(node, owner)
    return isinstance(node, ast.ClassDef) and place.where.startswith("transformations")  # the catalogue lists them


def test_everything_is_used() -> None:
    dead = [f"{p.where}: {p.node.name}" for p in _places() if p.node.name not in _named() and not _has_other_callers(p)]
    assert not dead, "nobody but tests names these:\n" + "\n".join(dead)
