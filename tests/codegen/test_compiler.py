"""Compiling: equal sources once, errors that help, flags that keep infinities, no compiler."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from daceopt import system
from daceopt.codegen import compiler
from daceopt.codegen.compiler import CompileJob, Flags, compile_objects, link, object_key
from daceopt.errors import BuildError
from daceopt.store.cache import Cache

SQUARE = 'extern "C" __attribute__((visibility("default"))) float square(float x) { return x * x; }'


@pytest.fixture
def store(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_equal_sources_compile_once(store: Cache, monkeypatch) -> None:
    started: list[list[str]] = []
    real = compiler._start
    monkeypatch.setattr(compiler, "_start", lambda command, *rest: (started.append(command), real(command, *rest))[1])
    jobs = [CompileJob(SQUARE), CompileJob("int other;"), CompileJob(SQUARE, label="again")]
    objects = compile_objects(jobs, store)
    assert objects[0] == objects[2] != objects[1]
    assert len(started) == 2
    assert compile_objects(jobs, store) == objects
    assert len(started) == 2


def test_key_depends_on_flags_and_kind_but_not_label() -> None:
    job = CompileJob(SQUARE, label="a")
    assert object_key(job) == object_key(CompileJob(SQUARE, label="b"))
    others = [
        CompileJob(SQUARE, "frame"),
        CompileJob(SQUARE, flags=Flags(compile=("-DX=1",))),
        CompileJob(SQUARE, flags=Flags(version="oneDNN 3.2")),
        CompileJob(SQUARE + " "),
    ]
    assert len({object_key(j) for j in [job, *others]}) == 5


def test_linked_library_works(store: Cache, tmp_path: Path) -> None:
    target = tmp_path / "lib.so"
    link(compile_objects([CompileJob(SQUARE)], store), target)
    function = ctypes.CDLL(str(target)).square
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    assert function(3.0) == 9.0


def test_kernel_flags_keep_infinities_nan_and_signed_zeros(store: Cache, tmp_path: Path) -> None:
    source = """
    #include <cmath>
    extern "C" __attribute__((visibility("default"))) int check(float inf, float nan, float minus_zero) {
        return std::isinf(inf) + 2 * std::isnan(nan) + 4 * std::signbit(minus_zero + minus_zero)
             + 8 * (inf - inf != inf - inf) + 16 * (std::exp(-inf) == 0.0f) + 32 * !std::signbit(minus_zero + 0.0f);
    }"""
    target = tmp_path / "lib.so"
    link(compile_objects([CompileJob(source)], store), target)
    function = ctypes.CDLL(str(target)).check
    function.argtypes = [ctypes.c_float] * 3
    assert function(float("inf"), float("nan"), -0.0) == 63


def test_only_kernels_that_compute_integers_are_told_that_they_wrap() -> None:
    for source, wraps in ((SQUARE, False), ("const int64_t v0 = p0[i0];", True), ("int32_t a1 = 0;", True)):
        assert ("-fwrapv" in compiler.job_command(CompileJob(source))) is wraps
    assert "-fwrapv" not in compiler.job_command(CompileJob("const int64_t v0 = 1;", "frame"))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_sine_and_cosine_of_one_number_stay_calls_for_vectors(store: Cache, kind: str) -> None:
    end = "f" if kind == "float" else ""
    source = f"""
    #include "daceopt/cpu.h"
    extern "C" void both(const {kind}* __restrict__ x, {kind}* __restrict__ y, {kind}* __restrict__ z) {{
        #pragma omp simd
        for (int64_t k = 0; k < 64; ++k) {{
            y[k] = sin{end}(x[k]);
            z[k] = cos{end}(x[k]) + 1;
        }}
    }}"""
    (made,) = compile_objects([CompileJob(source)], store)
    assert b"sincos" not in Path(made).read_bytes()


def test_rejected_source_is_shown_and_kept(store: Cache) -> None:
    with pytest.raises(BuildError, match=r"rejected kernel relu_3(?s:.*)'nonsense'") as raised:
        compile_objects([CompileJob("int f() { return nonsense; }", label="relu_3")], store)
    kept = list((store.folder / "v1" / "failed").iterdir())
    assert {path.suffix for path in kept} == {".cpp", ".log"}
    assert all(path.parent == store.folder / "v1" / "failed" for path in kept)
    assert str(store.folder / "v1" / "failed") in str(raised.value)


def test_undefined_function_is_a_link_error(store: Cache, tmp_path: Path) -> None:
    objects = compile_objects([CompileJob("void gone(); void f() { gone(); }")], store)
    with pytest.raises(BuildError, match=r"cannot link(?s:.*)gone"):
        link(objects, tmp_path / "lib.so")


def test_full_disk_under_the_compiler_moves_to_the_private_folder(store: Cache, monkeypatch) -> None:
    real = compiler._start

    def start(command, source, folder):
        if store.folder in folder.parents:
            return subprocess.CompletedProcess(command, 1, "", "fatal error: x.o: No space left on device")
        return real(command, source, folder)

    monkeypatch.setattr(compiler, "_start", start)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        (path,) = compile_objects([CompileJob(SQUARE)], store)
    assert path.exists()


@pytest.mark.parametrize(("cxx", "expected"), [("", "none of g++, clang++, c++"), ("no-such-cxx", "CXX='no-such-cxx'")])
def test_missing_compiler_says_what_to_install(tmp_path: Path, cxx: str, expected: str) -> None:
    code = (
        "from daceopt.codegen.compiler import *\n"
        "from daceopt.errors import BuildError\n"
        "try: compile_objects([CompileJob('')])\n"
        "except BuildError as error: print(error)"
    )
    environment = {"PATH": "", "CXX": cxx, "DACEOPT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert expected in done.stdout
    assert "apt-get install g++" in done.stdout


def test_flags_add_without_repeats() -> None:
    total = Flags(includes=("a",), link=("-lx",), version="1") + Flags(includes=("a", "b"), link=("-ly",), version="2")
    assert total == Flags(includes=("a", "b"), link=("-lx", "-ly"), version="1 2")


def test_machine_facts() -> None:
    assert system.cores() >= 1
    assert system.vector_bits() in (128, 256, 512)
    assert system.openmp_works()
    assert len(system.fingerprint()) == 64


@pytest.mark.parametrize(("name", "bits"), [("x86-64-v3", 256), ("x86-64-v4", 512), ("no-cpu", 0)])
def test_code_for_an_older_cpu(name: str, bits: int) -> None:
    """As the environment says; a process finds it once."""
    code = (
        "from daceopt.codegen.cpu.toolchain import target_flags\n"
        "from daceopt.errors import BuildError\n"
        "from daceopt.ir.nodes.blocked import BLOCK\n"
        "from daceopt import system\n"
        "print(system.vector_bits(), BLOCK, target_flags()[0], sorted(system.cpu_features()))"
    )
    environment = {**os.environ, "DACEOPT_MARCH": name}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if not bits:
        assert "'no-cpu' is no CPU to compile for: expected native, x86-64-v3, x86-64-v4" in done.stderr
        return
    features = system.cpu_features()
    if "avx2" not in features or (bits == 512 and "avx512f" not in features):
        pytest.skip("this CPU is older")
    assert done.stdout.startswith(f"{bits} {bits // 32} -march={name} "), done.stderr
    assert "amx" not in done.stdout and "avx512_bf16" not in done.stdout
    assert ("avx512f" in done.stdout) == (bits == 512)
