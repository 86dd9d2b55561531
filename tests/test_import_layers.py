"""The house's rules that a parser can check: who may import whom, how long files and functions are, no local paths."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import networkx
import pytest

from tests.torch_internals.names import ROOM, is_private, names_of

ROOT = Path(__file__).parents[1]
HOUSE = {
    "daceopt": ROOT / "daceopt",
    "daceopt.recipes": ROOT / "recipes",
    "daceopt.transformations": ROOT / "transformations",
}
CODE = ("daceopt", "recipes", "transformations", "benchmarks")
MAX_FILE, MAX_FUNCTION = 500, 48

# from the ground up; what stands on one floor does not know each other
FLOORS = (
    "errors _version",
    "highs logs progress scoped versions",
    "system torch_internals",
    "ir.scalar",
    "ir.data",
    "ir.kernel",
    "ir.schedule",
    "ir.graph",
    "ir.nodes",
    "ir.access",
    "ir.polyhedral",
    "ir.legality",
    "ir.edits",
    "ir.fusion",
    "ir.interpreter",
    "ir.control",
    "ir.text",
    "store",
    "runtime",
    "cost",
    "codegen",
    "ops",
    "libs",
    "autodiff splits",
    "passes",
    "layers",
    "capture",
    "transformations recipes",
    "programs",
    "pipeline",
    "models",
    "modules",
    "training",
    "distributed.search",
    "distributed.runtime",
    "standalone",
    "explore.report",
    "explore.session explore.simulation",
    "explore.live",
    "explore",
    "commands",
    "__main__ transform recipe patterns onnx_backend rerun",
)
NESTED = {floor.partition(".")[0] for rooms in FLOORS for floor in rooms.split() if "." in floor}
HEAVY = (
    *("dace", "sympy", "onnx", "onnxruntime", "islpy", "networkx", "numpy", "torch"),
    *("torch._dynamo", "torch.fx.experimental", "torch._decomp"),
)


class Import(NamedTuple):
    """One module that another imports: at its top, inside of a function, or for types alone."""

    source: str
    target: str
    where: str
    place: str


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def sources(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


@cache
def modules() -> dict[str, Path]:
    """Every module of the house by its name."""
    found = {}
    for package, folder in HOUSE.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def statements(tree: ast.AST, where: str = "top") -> Iterator[tuple[ast.AST, str]]:
    """Every node that is no expression, and whether it runs when the module is imported, in a function, or never."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        inner = where
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = "function"
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inner = "types"
        yield node, where
        yield from statements(node, inner)


def named(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        inner = (f"{node.module}.{a.name}" for a in node.names)
        return [name if name in modules() else str(node.module) for name in inner]
    return []


@cache
def imports() -> tuple[Import, ...]:
    return tuple(
        Import(source, target, where, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
        for source, path in modules().items()
        if source != "daceopt"  # the door: names that load on first use
        for node, where in statements(tree_of(path))
        for target in named(node)
    )


def room_of(module: str) -> str:
    """The folder below the house, or below one that has rooms itself, that a module stands in."""
    rooms = module.split(".")[1:]
    return ".".join(rooms[:2] if rooms[:1] and rooms[0] in NESTED else rooms[:1])


def between_rooms() -> Iterator[Import]:
    for found in imports():
        own, other = room_of(found.source), room_of(found.target)
        if found.target in modules() and other and own != other:
            yield found


def test_no_room_imports_from_a_floor_above() -> None:
    floor = {room: k for k, rooms in enumerate(FLOORS) for room in rooms.split()}
    wrong = []
    for found in between_rooms():
        own, other = room_of(found.source), room_of(found.target)
        assert own in floor and other in floor, f"{found.place}: give {own} and {other} their floor in FLOORS"
        wrong += [] if floor[other] < floor[own] else [f"{found.place}: {own} imports {other}"]
    assert not wrong, "\n".join(wrong)


@cache
def imports_at_top() -> dict[str, list[str]]:
    """Each module -> what it imports when it is imported."""
    at_top: dict[str, list[str]] = {}
    for edge in imports():
        if edge.where == "top":
            at_top.setdefault(edge.source, []).append(edge.target)
    return at_top


@cache
def weight(module: str) -> frozenset[str]:
    """The heavy packages that importing a module of the house brings along."""
    waiting, seen, found = [module], set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in modules():
            found.update(heavy for heavy in HEAVY if f"{name}.".startswith(f"{heavy}."))
            continue
        parts = name.split(".")
        waiting += [*imports_at_top().get(name, ()), *(".".join(parts[:k]) for k in range(2, len(parts)))]
    return frozenset(found)


def test_imports_stand_at_the_top_unless_they_are_heavy() -> None:
    """What a warm start, or a first look at the command line, need not load."""
    wrong = [
        f"{found.place}: {found.target} costs nothing more; import it at the top"
        for found in imports()
        if found.where == "function" and found.target in modules() and found.target != "daceopt"
        if weight(found.target) <= weight(found.source)
    ]
    assert not wrong, "\n".join(wrong)


def test_one_room_names_what_pytorch_keeps_private() -> None:
    files = [path for folder in HOUSE.values() for path in folder.rglob("*.py") if path.parent != ROOM]
    wrong = {(f"{path.relative_to(ROOT)}:{line}", name) for path in files for name, line in names_of(tree_of(path))}
    named = sorted(f"{place}: {name}" for place, name in wrong if is_private(name))
    assert not named, "daceopt/torch_internals is the place for these:\n" + "\n".join(named)


def test_no_modules_import_each_other() -> None:
    """Not by any chain of imports, at the top, in functions or for types alone."""
    edges = networkx.DiGraph((edge.source, edge.target) for edge in imports() if edge.target in modules())
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(edges) if len(circle) > 1]
    assert not circles


# rules for one kind of operator in several rooms, and commands called as what they run
SHARED = {"ops", "capture", "autodiff", "libs", "commands", "transformations", "recipes"}


def test_no_two_files_of_one_name_mean_different_things() -> None:
    by_name: dict[str, list[str]] = {}
    for module, path in modules().items():
        if path.name == "__init__.py":
            continue
        by_name.setdefault(module.rpartition(".")[2], []).append(module)
    reexports = {"daceopt.transform", "daceopt.recipe", "daceopt.patterns", "daceopt.onnx_backend"}
    wrong = {}
    for name, found in by_name.items():
        own = [m for m in found if room_of(m) not in SHARED and m not in reexports]
        if len({room_of(m) for m in own}) > 1:
            wrong[name] = own
    assert not wrong


def test_no_two_classes_of_one_name() -> None:
    by_name: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                by_name.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in by_name.items() if len(found) > 1}


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
    hidden = {".git", ".venv", "__pycache__", "build", "dist"}
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.name in hidden or (top.is_dir() and top.name.startswith(".") and top.name != ".ci"):
            continue
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and path.suffix in kinds and not hidden & set(path.parts):
                lines = path.read_text(encoding="utf-8").splitlines()
                found += [f"{path.relative_to(ROOT)}:{k}" for k, line in enumerate(lines, 1) if pattern.search(line)]
    assert not found


ROOMS = [room for rooms in FLOORS for room in rooms.split() if room not in {"transformations", "recipes"}]
PLAIN = [path for room in ROOMS if (ROOT / (path := f"daceopt/{room.replace('.', '/')}")).is_dir()]
PLAIN += [f"transformations/{p.name}" for p in sorted((ROOT / "transformations").iterdir()) if p.is_dir()]
PLAIN += ["recipes", "benchmarks"]
FILES = sorted((ROOT / "daceopt").glob("*.py"))
# found what, kept where?
VAGUE = set(
    "asked begun done found given gone got kept known made met said seen stands taken told turned walked wanted".split()
)
IRREGULAR = (
    "bound bent built done drawn drawn fed frozen given grown held hidden kept known laid led left made said seen shown"
)
PARTICIPLE = re.compile(
    rf"_*([a-z]*[^e]ed|{'|'.join(IRREGULAR.split())}|taken|told|written)(_(apart|as|at|by|first|for|from|in|of|out|over|to))?"
)
OTHERS = {
    "called",
    "named",
    "scaled",
    "shared",
    "scoped",
    "searchsorted",
    "embed",
}  # words of patterns; operators; no participle


def plain_sources(folder: str) -> list[Path]:
    """The files of a folder of ``PLAIN``, or with "" those beside the rooms."""
    return [p for p in sources(folder) if ROOT / "benchmarks" / "world" not in p.parents] if folder else FILES


def is_participle(node: ast.AST) -> bool:
    """A function whose name is a participle alone, such as ``joined``; properties say what something is."""
    if not isinstance(node, ast.FunctionDef) or not PARTICIPLE.fullmatch(node.name) or node.name.strip("_") in OTHERS:
        return False
    return not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def stored_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Variables and arguments, with their lines, but the fields of classes."""
    fields = {
        id(t)
        for c in ast.walk(tree)
        if isinstance(c, ast.ClassDef)
        for s in c.body
        for t in ast.walk(s)
        if isinstance(s, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.id, node.lineno


@pytest.mark.parametrize("folder", ["", *PLAIN])
def test_names_say_what_they_hold(folder: str) -> None:
    vague = [
        f"{p.relative_to(ROOT)}:{line}"
        for p in plain_sources(folder)
        for name, line in stored_names(tree_of(p))
        if name in VAGUE
    ]
    assert not vague, "name what it holds: " + ", ".join(vague)


@pytest.mark.parametrize("folder", ["", *PLAIN])
def test_functions_are_verbs_or_nouns(folder: str) -> None:
    bare = [
        f"{p.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for p in plain_sources(folder)
        for node in ast.walk(tree_of(p))
        if is_participle(node)
    ]
    assert not bare, "name what it does, or what it gives: " + ", ".join(bare)


def test_every_module_can_be_imported() -> None:
    """A name that moved is missing only when a module is loaded: mypy takes plugins and recipes as they come."""
    names = sorted(name for name in modules() if not name.endswith("__main__"))
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    loaded = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, cwd=ROOT)
    assert loaded.returncode == 0, loaded.stderr
