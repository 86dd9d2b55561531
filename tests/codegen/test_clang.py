"""Programs compiled by clang, with its OpenMP on the threads of PyTorch: the one on PATH, and that of the package
ziglang where no other compiler is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daceopt import system

NETWORK = """
import copy
import torch
from torch import nn
from daceopt import optimized_module, system
from tests.numerics import assert_within_rounding

assert system.require_compiler().family == "clang" and system.openmp_works()
torch.manual_seed(0)
torch.set_num_threads(2)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, 40),
    nn.LayerNorm(40), nn.Tanh(), nn.Linear(40, 5), nn.LogSoftmax(-1),
)
exact, ours = copy.deepcopy(net).double(), optimized_module(copy.deepcopy(net), recipe="cpu", fallback="raise")
x = torch.randn(16, 3, 32, 32)
for model, data in ((exact, x.double()), (net, x), (ours, x)):
    result = model(data)
    result.square().sum().backward()
    assert_within_rounding(result, net(x), exact(x.double()))
for a, b, c in zip(ours.parameters(), net.parameters(), exact.parameters()):
    assert_within_rounding(a.grad, b.grad, c.grad)
print(ours.daceopt)
"""
LOOPS = """
import ctypes, itertools, sys
from pathlib import Path
import numpy as np
import torch
from daceopt.codegen.compiler import CompileJob, compile_objects, link

many = 100
declared = "".join(f"float* p{k} = all + {k};" for k in range(many))
summed = " + ".join(f"*p{k}" for k in range(many))
source = '''
#include <stdint.h>
#include "daceopt/threads.h"
#define EXPORT extern "C" __attribute__((visibility("default")))
template <class T> void count(T from, T to, int32_t* times) {
#pragma omp parallel for schedule(static)
  for (T i = from; i < to; ++i) ++times[i - from];
}
EXPORT void signed_8(int64_t from, int64_t to, int32_t* times) { count<int64_t>(from, to, times); }
EXPORT void signed_4(int64_t from, int64_t to, int32_t* times) { count<int32_t>(from, to, times); }
EXPORT void unsigned_8(int64_t from, int64_t to, int32_t* times) { count<uint64_t>(from, to, times); }
EXPORT void unsigned_4(int64_t from, int64_t to, int32_t* times) { count<uint32_t>(from, to, times); }
EXPORT void chunked(int64_t from, int64_t to, int32_t* times) {
#pragma omp parallel for schedule(static, 3)
  for (int64_t i = from; i < to; ++i) ++times[i - from];
}
EXPORT void downwards(int64_t from, int64_t to, int32_t* times) {
#pragma omp parallel for schedule(static)
  for (int64_t i = to - 1; i >= from; i -= 1) ++times[i - from];
}
EXPORT void conditional(int64_t from, int64_t to, int32_t* times) {
#pragma omp parallel for if (to - from > 10)
  for (int64_t i = from; i < to; ++i) ++times[i - from];
}
EXPORT void nested(int64_t from, int64_t to, int32_t* times) {
#pragma omp parallel for
  for (int64_t i = from; i < to; ++i) {
#pragma omp parallel for if (i % 2)
    for (int64_t j = 0; j < 1; ++j) times[i - from] += omp_get_num_threads();
  }
}
EXPORT void shared(int64_t from, int64_t to, int32_t* times) {
#pragma omp parallel num_threads(2)
  {
#pragma omp for schedule(static) nowait
    for (int64_t i = from; i < to; i += 2) ++times[i - from];
#pragma omp barrier
#pragma omp for collapse(2)
    for (int64_t i = from + 1; i < to; i += 2)
      for (int64_t j = 0; j < 1; ++j) ++times[i - from];
  }
}
EXPORT int64_t sum(int64_t n) {
  int64_t total = 0, bits = 0;
#pragma omp parallel for reduction(+ : total) reduction(| : bits)
  for (int64_t i = 0; i < n; ++i) total += i, bits |= i;
  return total * 1000 + bits % 1000;
}
EXPORT double captured(float* all, int64_t n) {
  DECLARED
  double total = 0;
#pragma omp parallel for reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += SUMMED;
  return total;
}
'''.replace("DECLARED", declared).replace("SUMMED", summed)
target = Path(sys.argv[1], "loops.so")
link(compile_objects([CompileJob(source)]), target)
library = ctypes.CDLL(str(target))
names = "signed_8 signed_4 unsigned_8 unsigned_4 chunked downwards conditional nested shared".split()
for threads, name, (start, count) in itertools.product(
    (1, 2, 3), names, [(0, 0), (0, 1), (0, 2), (3, 7), (0, 10), (1, 11), (5, 100)]
):
    torch.set_num_threads(threads)
    times = np.zeros(count, np.int32)
    getattr(library, name)(ctypes.c_int64(start), ctypes.c_int64(start + count), times.ctypes.data_as(ctypes.c_void_p))
    assert (times == 1).all(), (threads, name, start, count, times)
library.sum.restype, library.captured.restype = ctypes.c_int64, ctypes.c_double
assert library.sum(ctypes.c_int64(100)) == 4950 * 1000 + 127
data = np.arange(many, dtype=np.float32)
assert library.captured(data.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(7)) == 7 * data.sum()
print("right")
"""


def python(code: str, cache: Path, *arguments: str, **environment: str) -> str:
    variables = {**os.environ, "DACEOPT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["clang++", pytest.param("ziglang", marks=pytest.mark.slow)])
def compiler(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment with that compiler; Zig's is taken where no other is on PATH."""
    if request.param == "ziglang":
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("the package ziglang is not installed")
        return {"PATH": "", "CXX": ""}
    if shutil.which("clang++") is None:
        pytest.skip("no clang++ is on PATH")
    return {"CXX": "clang++"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, since Zig compiles its C++ library into it."""
    return tmp_path_factory.mktemp("cache")


def test_a_network_trains(compiler: dict[str, str], cache: Path) -> None:
    assert "1 programs" in python(NETWORK, cache, **compiler)


def test_threads_share_loops(compiler: dict[str, str], cache: Path, tmp_path: Path) -> None:
    assert python(LOOPS, cache, str(tmp_path), **compiler) == "right\n"


@pytest.mark.parametrize(
    ("family", "version", "is_old"),
    [
        ("gcc", "g++ (Debian 12.2.0-14+deb12u1) 12.2.0", False),
        ("gcc", "g++ (GCC) 10.3.1 20210422 (Red Hat 10.3.1-1)", False),
        ("gcc", "g++-9 (Ubuntu 11.0.1-1) 9.4.0", True),
        ("clang", "Debian clang version 14.0.6", False),
        ("clang", "clang version 12.0.1", True),
        ("gcc", "a compiler", False),
    ],
)
def test_old_compilers_are_said_in_one_line(family: str, version: str, is_old: bool) -> None:
    misfit = system.Compiler(("c++",), family, version).misfit
    assert bool(misfit) == is_old and "\n" not in misfit
    if is_old:
        assert f"'{version}' is too old, {family} {system.OLDEST[family]} is the first that will do; install" in misfit
