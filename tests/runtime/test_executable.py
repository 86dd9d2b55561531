"""Loaded programs: results, sizes, errors, host calls, threads, damage."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from daceopt.codegen.assemble import build_program, load_program, program_key
from daceopt.codegen.compiler import CompileJob
from daceopt.errors import BuildError, RunError, RunIndexError
from daceopt.runtime.executable import _LOADED, TimedExecutable, load
from daceopt.runtime.manifest import KernelInfo, Manifest, Symbol, Tensor
from daceopt.store import sealed
from daceopt.store.cache import Cache
from tests.codegen.programs import SCALE, build_scale, run_scale, scale_jobs, scale_source


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def test_run_and_sizes(store: Cache) -> None:
    program = build_scale(store)
    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(run_scale(program, x), 3 * x)
    assert program.sizes((5,)).shapes == ((5,),)
    assert program.sizes((5,)) is program.sizes((5,))
    assert build_scale(store) is program


def test_what_sizes_mean_is_kept_of_so_many(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daceopt.runtime.executable.KNOWN_SIZES", 3)
    program = build_scale(store)
    for n in range(8):
        x = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(run_scale(program, x), 3 * x)
        assert program.sizes((n,)).shapes == ((n,),)
    assert len(program._sizes) <= 3


def test_wrong_calls(store: Cache) -> None:
    program = build_scale(store)
    with pytest.raises(RunError, match=r"symbols \['n'\]"):
        program.run([0] * 5, ())
    with pytest.raises(RunError, match="negative"):
        program.sizes((-1,))


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ('throw std::runtime_error("it broke");', RunError, "scale: it broke"),
        ("throw 1;", RunError, "unknown type"),
        ("*status = 1;", RunIndexError, "an index is out of range"),
    ],
)
def test_errors_of_the_program(store: Cache, body: str, error: type[Exception], message: str) -> None:
    program = build_scale(store, body)
    with pytest.raises(error, match=message):
        run_scale(program, np.zeros(2, np.float32))
    if error is RunIndexError:
        assert issubclass(error, IndexError)


def test_eight_threads(store: Cache) -> None:
    program = build_scale(store)
    failures: list[int] = []

    def work(seed: int) -> None:
        for size in range(1, 60):
            x = np.full(size + seed, seed, np.float32)
            if not np.array_equal(run_scale(program, x), 3 * x):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_constants_are_stored_without_pickle(store: Cache) -> None:
    manifest = Manifest("scale", SCALE.inputs, (Tensor("c", "bool", 1),), SCALE.outputs, SCALE.symbols)
    values = {"c": np.array([True, False])}
    program = build_program(program_key("constants"), manifest, scale_jobs(), values, store)
    assert program.constants[0].tolist() == [True, False]
    with pytest.raises(BuildError, match=r"no values were given for the constants \['c'\]"):
        build_program(program_key("none"), manifest, scale_jobs(), {}, store)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 garbage", b"\x93NUMPY"])
def test_constants_that_cannot_be_read_are_built_again(store: Cache, content: bytes) -> None:
    """However well they are sealed; what was loaded has them, whatever becomes of the entry."""
    manifest = Manifest("scale", SCALE.inputs, (Tensor("c", "bool", 1),), SCALE.outputs, SCALE.symbols)
    name = program_key("sealed constants", content.hex())
    build_program(name, manifest, scale_jobs(), {"c": np.array([True, False])}, store)
    entry = store.get("program", name)
    assert entry is not None
    copied = entry.with_name("0" * 64)  # a path of which no program is loaded
    shutil.copytree(entry, copied)
    found = load(copied)
    (entry / "constants.npz").write_bytes(content)
    (entry / "entry.json").unlink()
    sealed.seal(entry)
    _LOADED.pop(entry)
    assert load_program(name, store) is None and store.get("program", name) is None
    shutil.rmtree(copied)
    assert found.constants[0].tolist() == [True, False]


@pytest.mark.parametrize("file", ["program.so", "manifest.json", "entry.json"])
def test_damaged_program_is_built_again(tmp_path: Path, file: str) -> None:
    store = Cache(tmp_path)
    entry = build_scale(store).entry
    data = bytearray((entry / file).read_bytes())
    data[len(data) // 2] ^= 1
    (entry / file).unlink()  # the library that is loaded stays as it is, for when the process ends
    (entry / file).write_bytes(data[: len(data) * 3 // 4] if file == "entry.json" else data)
    assert load_program(entry.name, store) is None
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(run_scale(build_scale(store), x), 3 * x)


def test_program_of_another_abi_is_built_again(tmp_path: Path, caplog) -> None:
    store = Cache(tmp_path)
    source = scale_jobs()[0].source
    old = CompileJob(source.replace("daceopt_abi_version() { return ", "daceopt_abi_version() { return 90"), "frame")
    name = program_key("abi")
    with pytest.raises(BuildError, match=r"has ABI version 90\d, expected"):
        build_program(name, SCALE, [old], store=store)
    with caplog.at_level(logging.WARNING, "daceopt.build"):
        assert load_program(name, store) is None
    assert "ABI version" in caplog.text
    x = np.ones(4, np.float32)
    np.testing.assert_array_equal(run_scale(build_program(name, SCALE, scale_jobs(), store=store), x), 3 * x)


def test_a_library_that_writes_other_results_than_its_manifest_says(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    build_scale(store)
    wide = dataclasses.replace(SCALE, outputs=(Tensor("y", "float64", 2),))
    with pytest.raises(BuildError, match=r"writes float32\[1\], but its manifest says float64\[2\]"):
        build_program(program_key("wide"), wide, scale_jobs(), store=store)


def test_not_a_library(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(SCALE.to_json())
    (tmp_path / "program.so").write_bytes(b"\x7fELF garbage")
    with pytest.raises(BuildError, match="has to be built again"):
        load(tmp_path)
    with pytest.raises(BuildError, match="cannot read"):
        load(tmp_path / "nowhere")


def test_manifest_round_trip() -> None:
    manifest = Manifest(
        "m",
        (Tensor('"; system("x"); //', "float32", 2),),
        (Tensor("c", "int64", 0),),
        (Tensor("y", "bool", 1),),
        (Symbol("n", "x", 1),),
        True,
        True,
        (KernelInfo("k", ("y", "z")),),
    )
    assert Manifest.from_json(manifest.to_json()) == manifest
    for text in ("", "{}", "[]", '{"format": 99}', manifest.to_json()[:-30]):
        with pytest.raises(BuildError, match="built again"):
            Manifest.from_json(text)


ONE_RUNTIME = """
import sys
from pathlib import Path
{order}
from daceopt.store import sealed
from daceopt.store.cache import Cache
from tests.codegen.programs import build_scale, run_scale
import numpy as np
body = '_Pragma("omp parallel for") for (int64_t i = 0; i < n; ++i) y[i] = 3.0f * x[i];'
program = build_scale(Cache(Path(sys.argv[1])), body)
assert run_scale(program, np.ones(100000, np.float32)).sum() == 300000
import torch
torch.ones(100000).exp().sum()
mapped = {{line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}}
assert len(mapped) == 1, mapped
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("order", ["import torch", ""], ids=["torch first", "program first"])
def test_one_openmp_runtime_is_mapped(tmp_path: Path, order: str) -> None:
    code = ONE_RUNTIME.format(order=order)
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_warm_path_imports_neither_dace_nor_sympy() -> None:
    code = (
        "import sys, daceopt.runtime.executable, daceopt.codegen.assemble, daceopt.codegen.entry\n"
        "assert not {'dace', 'onnx', 'sympy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_times_of_kernels(store: Cache) -> None:
    body = "if (mark) mark(0);\nfor (int64_t i = 0; i < n; ++i) y[i] = 3.0f * x[i];\nif (mark) mark(1);"
    manifest = replace(SCALE, kernels=(KernelInfo("scale", ("y", "z")),))
    jobs = [CompileJob(replace(scale_source(body), manifest=manifest).text(), "frame")]
    program = build_program(program_key("timed"), manifest, jobs, store=store)
    timed = TimedExecutable(program)
    x = np.ones(1000, np.float32)
    assert (run_scale(timed, x) == 3).all() and (run_scale(program, x) == 3).all()
    assert timed.by_array().keys() == {"y", "z"} and 0 < timed.by_array()["y"] < 60
    assert program.manifest.repeats and not timed.manifest.repeats and timed.sizes((5,)) == program.sizes((5,))
