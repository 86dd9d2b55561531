"""The wheel holds everything under its import name, and the editable install serves the same names from anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("daceopt", "transformations", "recipes", "setup.py", "pyproject.toml")


def run(*command: str, cwd: Path, **environment: str) -> str:
    variables = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder appears in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, source / name, ignore=ignore) if path.is_dir() else shutil.copy(path, source / name)
    out = tmp_path_factory.mktemp("wheel")
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", str(out))
    run(sys.executable, "-m", "pip", "wheel", *options, ".", cwd=source)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """-S keeps the editable install's hooks out; the dependencies come back by path."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import daceopt.recipes, daceopt.transformations.coarse.gelu_lifting as g, daceopt.transformations as t;"
        "print(g.__file__); print(len(t.names())); daceopt.recipes.get('cpu').resolve()"
    )
    packages = [p for p in sys.path if p.endswith("site-packages")]
    path = os.pathsep.join([str(tmp_path / "site"), *packages])
    shown = run(sys.executable, "-S", "-c", code, cwd=tmp_path, PYTHONPATH=path).splitlines()
    assert shown[0].startswith(str(tmp_path / "site" / "daceopt" / "transformations"))
    assert int(shown[1]) >= 20


def test_wheel_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {n.partition("/")[0] for n in names if ".dist-info" not in n}
    assert tops <= {"daceopt"}, "nothing may claim another top-level name"
    for tree in ("daceopt", "transformations", "recipes"):
        prefix = tree if tree == "daceopt" else f"daceopt/{tree}"
        for file in (ROOT / tree).rglob("*"):
            if file.suffix in (".py", ".h", ".typed", ".html", ".css", ".js"):
                assert f"{prefix}/{file.relative_to(ROOT / tree)}" in names


def test_entry_points(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
    text = archive.read(name).decode()
    assert "daceopt = daceopt.commands.main:main" in text
    assert "[torch_dynamo_backends]\ndaceopt = daceopt.modules.dynamo:daceopt" in text


def test_editable_install_imports_from_anywhere(tmp_path: Path) -> None:
    code = "import daceopt.transformations, daceopt.recipes; print(daceopt.transformations.__file__)"
    shown = run(sys.executable, "-c", code, cwd=tmp_path).strip()
    assert Path(shown) == ROOT / "transformations" / "__init__.py"


def test_versions_are_pinned_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in lines)
    assert "torch==2.13.0" in lines
    assert not [line for line in lines if "@" in line or "/" in line]


def test_make_help_lists_every_target() -> None:
    shown = run("make", "help", cwd=ROOT)
    for target in ("demo", "test", "lint", "format", "types", "bench", "clean"):
        assert f"make {target} " in shown
