"""Programs compiled for AArch64 by a cross compiler, and run by an emulator of its user mode."""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daceopt import libs
from daceopt.codegen.build import GeneratedProgram
from daceopt.codegen.compiler import CompileJob, job_command, job_source
from daceopt.codegen.include import INCLUDE
from daceopt.ir.graph.graph import Graph
from daceopt.libs.plain import own_code
from daceopt.runtime.manifest import Tensor

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
INSTALL = "apt-get install g++-aarch64-linux-gnu qemu-user"
_CPU = "-march=armv8-a"
_DRIVER = """\
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int daceopt_run(void** pointers, const int64_t* symbols);
extern "C" void daceopt_sizes(const int64_t* symbols, int64_t* out);
extern "C" const char* daceopt_error();

static const size_t kRead[] = {{{read}}}, kWritten[] = {{{written}}};

static void* block(size_t bytes) {{ return std::aligned_alloc(64, (bytes / 64 + 1) * 64); }}

int main(int, char** paths) {{
    int64_t sizes[{numbers}], seed = 0;
    daceopt_sizes(nullptr, sizes);
    void* pointers[{pointers}];
    int count = 0;
    FILE* file = std::fopen(paths[1], "rb");
    for (size_t bytes : kRead) {{
        if (!bytes) continue;
        pointers[count] = block(bytes);
        if (std::fread(pointers[count++], 1, bytes, file) != bytes) return 2;
    }}
    void* saved = {saved} ? block({saved}) : block(sizes[1]);
    if ({saved} && std::fread(saved, 1, {saved}, file) != {saved}) return 2;
    std::fclose(file);
    const int first = count;
    for (size_t bytes : kWritten)
        if (bytes) pointers[count++] = block(bytes);
    pointers[count++] = saved;
    pointers[count++] = block(sizes[0]);
    pointers[count] = &seed;
    if (daceopt_run(pointers, nullptr)) return std::fputs(daceopt_error(), stderr), 1;
    file = std::fopen(paths[2], "wb");
    count = first;
    for (size_t bytes : kWritten)
        if (bytes) std::fwrite(pointers[count++], 1, bytes, file);
    if (!{saved}) std::fwrite(saved, 1, sizes[1], file);
    return std::fclose(file);
}}
"""


def lacking() -> str:
    """What is missing to compile and to run; empty where nothing is."""
    missing = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"no {' and no '.join(missing)}: {INSTALL}" if missing else ""


@dataclass(frozen=True)
class Results:
    """The outputs of a run by role, and the saved block, if any, that it left."""

    outputs: Mapping[str, np.ndarray]
    saved: bytes


def run(
    graph: Graph, roles: Mapping[str, str], feeds: Mapping[str, np.ndarray], folder: Path, saved: bytes = b""
) -> Results:
    """One call of a program of fixed sizes, compiled for AArch64 without any library. ``feeds``: inputs by role."""
    with own_code():
        program = GeneratedProgram(graph, roles, libs.implement, 0)
    manifest = program.manifest
    assert not manifest.symbols and not manifest.uses_seed
    shapes = {role: tuple(map(int, program.graph.shape(n))) for n, role in program.roles.items()}
    read = [*(feeds[t.name] for t in manifest.inputs), *(program.constants[t.name] for t in manifest.constants)]
    written = [_bytes(t, shapes[t.name]) for t in manifest.outputs]
    numbers = 2 + sum(t.rank for t in manifest.outputs)
    driver = _DRIVER.format(
        read=", ".join(["0", *(str(a.nbytes) for a in read)]),
        written=", ".join(["0", *map(str, written)]),
        saved=len(saved),
        numbers=numbers,
        pointers=manifest.pointer_count,
    )
    binary = _link([*program.jobs, CompileJob(driver, "frame", label="driver")], folder)
    (folder / "in").write_bytes(b"".join([*(np.ascontiguousarray(a).tobytes() for a in read), saved]))
    done = subprocess.run(
        [EMULATOR, binary, folder / "in", folder / "out"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return _results((folder / "out").read_bytes(), manifest.outputs, shapes)


def _bytes(tensor: Tensor, shape: Sequence[int]) -> int:
    return math.prod(shape) * np.dtype(tensor.dtype).itemsize


def _results(content: bytes, tensors: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> Results:
    outputs, start = {}, 0
    for tensor in tensors:
        end = start + _bytes(tensor, shapes[tensor.name])
        outputs[tensor.name] = np.frombuffer(content[start:end], tensor.dtype).reshape(shapes[tensor.name])
        start = end
    return Results(outputs, content[start:])


def _link(jobs: Sequence[CompileJob], folder: Path) -> Path:
    objects = []
    for k, job in enumerate(dict.fromkeys(jobs)):
        objects.append(folder / f"{k}.o")
        flags = [f for f in job_command(job)[1:] if not f.startswith(("-march=", "-mprefer-vector-width="))]
        includes = [f"-I{path}" for path in (INCLUDE, *job.flags.includes)]
        _compile([*flags, _CPU, *includes, "-x", "c++", "-c", "-", "-o", str(objects[-1])], job_source(job))
    _compile(["-static", "-fopenmp", *map(str, objects), "-o", str(folder / "program")], "")
    return folder / "program"


def _compile(arguments: Sequence[str], source: str) -> None:
    done = subprocess.run([COMPILER, *arguments], input=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
