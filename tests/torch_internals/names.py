"""What the room needs of PyTorch: the private names that its files name, read from their text, and tables of what is
used of them."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from daceopt.torch_internals.release import number_of

ROOM = Path(__file__).parents[2] / "daceopt" / "torch_internals"


def is_private(name: str) -> bool:
    """Does PyTorch promise nothing of it? Operators are none: their names are those of ATen's schemas."""
    parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return parts[0] == "torch" and parts[1:2] != ["ops"] and (hidden or parts[1:3] == ["fx", "experimental"])


def names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name of PyTorch in a file, dotted and from its root, with its line: what is imported, attributes of what is
    imported, also by ``getattr`` with a text, and texts that are names."""
    alias = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for local, name in _imported(node):
                alias[local] = name
                yield name, node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if all(part.isidentifier() for part in node.value.split(".")):
                yield node.value, node.lineno
        elif isinstance(node, ast.Attribute) and (chain := _chain(node)):
            root, _, rest = chain.partition(".")
            if root in alias:
                yield f"{alias[root]}.{rest}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1:
            root, _, rest = (_chain(node.args[0]) or "").partition(".")
            if root in alias and isinstance(text := node.args[1], ast.Constant):
                yield ".".join([alias[root], *rest.split(), str(text.value)]), node.lineno


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """What an import calls something of PyTorch, and its name."""
    for a in node.names:
        name = f"{node.module}.{a.name}" if isinstance(node, ast.ImportFrom) else a.name
        if name.split(".")[0] == "torch":
            plain = isinstance(node, ast.Import) and not a.asname
            yield (a.asname or (name.split(".")[0] if plain else a.name)), ("torch" if plain else name)
            if plain:
                yield "", name


def _chain(node: ast.AST) -> str | None:
    """``a.b.c``; None of what is no such chain."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


@cache
def private_names() -> tuple[str, ...]:
    """Those that the room names, without the modules and classes on the way to others."""
    from daceopt.torch_internals import cuda_state, replacements

    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOM.glob("*.py") if path.stem != "logger_names"]
    names = {name for tree in trees for name, _ in names_of(tree)}
    names |= {f"torch._C.{name}" for name in cuda_state._SWITCHES}
    for path, (module, _) in replacements.REPLACED.items():
        names |= {f"{module}.{known}" for known in (path, replacements.RENAMED.get(path)) if known and "*" not in path}
    names |= {f"{module}.{name}" for module, name in replacements.EXCHANGED.values()}
    return tuple(sorted(name for name in names if is_private(name)))


def is_of_release(name: str) -> bool:
    """Has this release of PyTorch such a name? All have those of which ``releases.txt`` says nothing."""
    limit, *version = RELEASES.get(name, ["always"])
    own = number_of(torch.__version__)
    return limit == "always" or (own >= number_of(*version) if limit == "since" else own <= number_of(*version))


def resolve(name: str) -> Any:
    """What a dotted name stands for. Raises AttributeError or ImportError where there is none."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:k]))
        except ModuleNotFoundError:
            continue
        for part in parts[k:]:
            value = getattr(value, part)
        return value
    raise ImportError(name)


def has_attribute(cls: type, name: str) -> bool:
    """Has a class, or what its methods make, an attribute of this name?"""
    if hasattr(cls, name):
        return True
    classes = [c for c in cls.__mro__ if c.__module__.startswith("torch")]
    return any(name in vars(c).get("__annotations__", {}) or f"self.{name}" in _source(c) for c in classes)


@cache
def _source(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):  # of C++
        return ""


def parameters(function: Any) -> list[str]:
    """The names of the parameters of a function, also behind decorators; with their stars."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(p.kind, "") + p.name for p in inspect.signature(inspect.unwrap(function)).parameters.values()]


def table(text: str) -> dict[str, list[str]]:
    """``name: word word`` of each line."""
    lines = [line.partition(":") for line in text.strip().splitlines()]
    return {name.strip(): words.split() for name, _, words in lines}


PARAMETERS = table((Path(__file__).parent / "parameters.txt").read_text(encoding="utf-8"))
"""The parameters that calls in the room, or of what it gives, fill: by name or, in this order, by position."""

ATTRIBUTES = table((Path(__file__).parent / "attributes.txt").read_text(encoding="utf-8"))
"""Of PyTorch's own types, what other rooms read, write or call of their values; ``a|b``: by one of these names."""

RELEASES = table((Path(__file__).parent / "releases.txt").read_text(encoding="utf-8"))
"""Names that some of the releases have, for each of which the room has a way: ``since`` which, or ``until`` which."""
