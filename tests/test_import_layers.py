"""The house's rules that a parser can check: who may import whom, how long files and functions are, no local paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("daceopt", "recipes", "transformations", "benchmarks")
MAX_FILE, MAX_FUNCTION = 450, 60

FLOORS = (
    "errors logs _version progress identity",
    "ir",
    "cost build runtime recipe",
    "ops libs",
    "autodiff splits",
    "importer",
    "capture",
    "recipes transformations",
    "pipeline options",
    "onnx_variants onnx_tail onnx_arrays stats",
    "module",
    "dynamo observe frozen onnx_file onnx_backend optimize export standalone",
    "explore bisect commands __main__",
    "rerun",
)
# files that are one room with another
SAME_ROOM = {
    **dict.fromkeys(
        ("loading", "registry", "runner", "step", "trace", "verification", "verification_built", "transform"), "recipe"
    ),
    "codegen": "build",
    "reproducer": "recipe",
    "rerun": "recipe",
    "compiled": "pipeline",
    **dict.fromkeys(("patterns", "pattern_matching", "pattern_algebra", "pattern_replacement"), "recipe"),
    **dict.fromkeys(("dispatch", "frames", "fast_path", "backend", "piece"), "module"),
}
# Upward, but only inside functions: the graph asks for operator nodes, the checks for how to execute them, by name.
REGISTERED_LATER = {("ir", "ops"), ("recipe", "ops")}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def room_of(path: Path) -> str:
    top, second = path.relative_to(ROOT).with_suffix("").parts[:2]
    return SAME_ROOM.get(second, second) if top == "daceopt" else top


def runtime_nodes(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that is executed, with whether it stands in a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node, inside
        yield from runtime_nodes(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def imported(node: ast.AST) -> list[str]:
    """The parts of daceopt that an import statement names."""
    if isinstance(node, ast.Import):
        return [a.name.split(".")[1] for a in node.names if a.name.startswith("daceopt.")]
    if isinstance(node, ast.ImportFrom) and node.module == "daceopt":
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daceopt."):
        return [str(node.module).split(".")[1]]
    return []


def edges() -> Iterator[tuple[str, str, bool, str]]:
    """(from room, to room, inside a function, place) of every import between rooms."""
    for path in sources("daceopt", "recipes", "transformations"):
        if path == ROOT / "daceopt" / "__init__.py":
            continue  # the door: names that load on first use
        for node, inside in runtime_nodes(tree_of(path)):
            for name in imported(node):
                target = "module" if name == "optimized_module" else SAME_ROOM.get(name, name)
                if target != room_of(path):
                    yield room_of(path), target, inside, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def test_no_room_imports_from_a_floor_above() -> None:
    floor = {room: k for k, rooms in enumerate(FLOORS) for room in rooms.split()}
    wrong = []
    for source, target, inside, place in edges():
        assert source in floor and target in floor, f"{place}: give {source} and {target} their floor in FLOORS"
        allowed = floor[target] <= floor[source] or (inside and (source, target) in REGISTERED_LATER)
        wrong += [] if allowed else [f"{place}: {source} imports {target}"]
    assert not wrong, "\n".join(wrong)


def test_no_two_rooms_import_each_other() -> None:
    found = {
        (source, target): place for source, target, _, place in edges() if (source, target) not in REGISTERED_LATER
    }
    mutual = [f"{place}: {a} and {b} import each other" for (a, b), place in found.items() if (b, a) in found and a < b]
    assert not mutual, "\n".join(mutual)


@pytest.mark.parametrize("folder", CODE)
def test_files_and_functions_are_short(folder: str) -> None:
    files = {p.relative_to(ROOT): len(p.read_text(encoding="utf-8").splitlines()) for p in sources(folder)}
    assert not {str(p): n for p, n in files.items() if n > MAX_FILE}
    functions = {
        f"{path.relative_to(ROOT)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sources(folder)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: n for name, n in functions.items() if n > MAX_FUNCTION}


def test_no_file_mentions_a_folder_of_somebodys_machine() -> None:
    pattern = re.compile(r"(?<![\w.~$}])/(?:work|home|root|Users)/[\w.]")
    kinds = {".py", ".md", ".toml", ".txt", ".h", ".cpp", ".ipynb", ".html", ".css", ""}
    hidden = {".git", ".venv", "__pycache__"}
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.name in hidden or (top.is_dir() and top.name.startswith(".") and top.name != ".ci"):
            continue
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and path.suffix in kinds and not hidden & set(path.parts):
                lines = path.read_text(encoding="utf-8").splitlines()
                found += [f"{path.relative_to(ROOT)}:{k}" for k, line in enumerate(lines, 1) if pattern.search(line)]
    assert not found
