"""Operators that index at run time, and random modules, never leave their arrays: AddressSanitizer watches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import kept_objects
from tests.sanitizer.__main__ import EIGHTHS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def libraries() -> str:
    """To preload: the sanitizer, and the C++ library, whose exceptions it intercepts."""
    found = [_library("libasan.so"), _library("libstdc++.so.6")]
    if not all(Path(f).is_absolute() for f in found):
        pytest.skip("the compiler has no AddressSanitizer")
    return " ".join(found)


def _library(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()


def run(libraries: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept_objects.share(Path(os.environ["DACEOPT_CACHE_DIR"]), folder)
    environment = {
        **os.environ,
        "LD_PRELOAD": libraries,
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "1",
        "DACEOPT_CACHE_DIR": str(folder),  # programs with the sanitizer inside are for this process only
    }
    command = [sys.executable, "-m", "tests.sanitizer", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.share(8)
@pytest.mark.parametrize("eighth", EIGHTHS)
def test_run_time_indices_stay_inside(eighth: str, libraries: str, tmp_path: Path) -> None:
    done = run(libraries, tmp_path, eighth)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(EIGHTHS) * len(_passed(done)) > 300


@pytest.mark.slow
def test_random_modules_stay_inside(libraries: str, tmp_path: Path) -> None:
    """After them, the sanitizer sees the overflow that is made."""
    done = run(libraries, tmp_path, "modules")
    assert len(_passed(done)) == 5
    assert done.returncode != 0 and "heap-buffer-overflow" in done.stderr


def _passed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The names of the cases; all of them ran, and went well."""
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    failed = {m["name"]: m["reason"] for m in messages if m["reason"]}
    assert not failed
    assert messages and messages[-1]["name"] == "done", done.stderr[-4000:]
    names = [m["name"] for m in messages[:-1]]
    assert messages[-1]["count"] <= len(names)
    return names
