"""A missing compiler, a cache that cannot be written, damaged or malicious entries: the result is right or the error
says what to install.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from daceopt import optimized_module
from daceopt.modules.frozen import freeze
from daceopt.runtime.arithmetic import evaluate
from tests.capture.torch.interpreted import compile_interpreted
from tests.test_bad_input import product
from tests.twins import module

MODULE = """
    import torch, daceopt
    from torch import nn
    torch.manual_seed(0)
    reference = nn.Sequential(nn.LayerNorm(4), nn.Tanh())
    x = torch.randn(2, 4)
    expected = reference(x)
    expected.sum().backward()
    gradient = reference[0].weight.grad.clone()
    reference.zero_grad()
    ours = daceopt.optimized_module(reference, recipe="cpu")
    found = ours(x)
    found.sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(reference[0].weight.grad, gradient)
    stats = ours.daceopt.stats
    print("eager", stats.eager_calls, "programs", stats.programs, "cached", stats.cache_hits, ours.daceopt.reasons)
"""


def run(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = os.environ | {"DACEOPT_CACHE_DIR": str(cache)} | environment
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=settings, capture_output=True, text=True, cwd=cache.parent)


def test_a_missing_compiler_says_what_to_install(tmp_path: Path) -> None:
    onnx.save(product(), tmp_path / "m.onnx")
    code = """
    from daceopt.errors import BuildError
    try:
        daceopt.from_onnx("m.onnx", fallback=False)
    except BuildError as error:
        print("BUILD", error)
    """
    done = run(textwrap.dedent(MODULE) + textwrap.dedent(code), tmp_path / "cache", PATH="", CXX="")
    assert done.returncode == 0, done.stderr
    module, build = done.stdout.splitlines()
    assert module.startswith("eager 1 programs 0") and "apt-get install g++" in module
    assert "runs in eager PyTorch" in done.stderr and "apt-get install g++" in done.stderr
    assert build.startswith("BUILD") and "apt-get install g++" in build


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder with the module's program."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    done = run(MODULE, cache)
    assert "eager 0 programs 1 cached 0" in done.stdout, done.stderr
    return cache


@pytest.fixture
def cache(filled_cache: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(filled_cache, tmp_path / "cache"))


def test_damaged_entries_are_built_again(cache: Path) -> None:
    names = ("program.so", "manifest.json", "report.json", "entry.json")
    files = [path for path in (cache / "v1").rglob("*") if path.name in names]
    assert {path.name for path in files} == set(names)
    for path in files:
        flip(path)
    done = run(MODULE, cache)
    assert "eager 0 programs 1 cached 0" in done.stdout, done.stderr
    assert "eager 0 programs 1 cached 1" in run(MODULE, cache).stdout


def test_a_record_is_data_even_when_it_is_sealed_anew(tmp_path: Path, cache: Path) -> None:
    """Whoever can write the cache folder owns its programs; the numbers of a record still are never code."""
    from daceopt.store import sealed

    (report,) = (cache / "v1").rglob("report.json")
    record = json.loads(report.read_text())
    for step in record["history"]:
        step["bytes_after"] = step["bytes_before"] = "__import__('os').system('touch pwned')"
    report.write_text(json.dumps(record))
    (report.parent / "entry.json").unlink()
    sealed.seal(report.parent)
    code = """
    try:
        print(stats.bytes_moved)
    except ValueError as error:
        print("REFUSED", error)
    """
    done = run(textwrap.dedent(MODULE) + textwrap.dedent(code), cache)
    assert "cached 1" in done.stdout and "REFUSED" in done.stdout, done.stderr
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "(10**8)**(10**8)",
        "(" * 5000 + "1" + ")" * 5000,
        "a.b",
        "[1]",
        "a if a else 1",
        "'x'*9",
        "1/0",
        "1e999",
    ],
    ids=range(9),
)
def test_sizes_in_records_are_small_arithmetic(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, {"a": 2})


def test_a_cache_folder_that_cannot_be_made_still_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = textwrap.dedent(MODULE)
    done = run(f"import os; os.chdir({str(tmp_path)!r})\n{command}", tmp_path / "cache", DACEOPT_CACHE_DIR="file/cache")
    assert "eager 0 programs 1" in done.stdout, done.stderr
    assert "cannot write its cache folder" in done.stderr


def compared(frozen: bool) -> tuple[bool, str]:
    """Whether 2**24 + 1 is above 2**24 + 0.5 in the default type, and what stands for the graph in the cache."""
    given = torch.tensor([16777217])
    net = module(lambda self, x: x > 16777216.5)
    texts: list[str] = []

    def compile_graph(identity: str, load: Any, **_: Any) -> Any:
        texts.append(identity)
        return compile_interpreted(identity, load)

    with pytest.MonkeyPatch.context() as patch:
        if frozen:
            patch.setattr("daceopt.modules.frozen.compile_graph", compile_graph)
            (found,) = freeze("net", net, (given,), {}).compile("none")(given.numpy())
        else:
            patch.setattr("daceopt.pipeline.compile_graph", compile_graph)
            torch._dynamo.reset()
            found = optimized_module(net, fallback="raise")(given).numpy()
    return bool(found), texts[0]


@pytest.mark.parametrize("frozen", [False, True])
def test_the_default_type_decides_what_is_computed(frozen: bool) -> None:
    """Integers are compared with numbers in it, which no node of the graph says."""
    before = torch.get_default_dtype()
    found = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            found.append(compared(frozen))
    finally:
        torch.set_default_dtype(before)
    assert [value for value, _ in found] == [False, True]
    assert found[0][1] != found[1][1], "one would be served the program of the other"
