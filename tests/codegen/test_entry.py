"""What is around a frame, and its refusal of anything that is not a plain expression."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import daceopt.errors
from daceopt.codegen.assemble import build_program, program_key
from daceopt.codegen.compiler import CompileJob, Flags
from daceopt.codegen.entry import BufferAddress, ProgramSource
from daceopt.errors import BuildError, RunError, RunIndexError
from daceopt.runtime.manifest import Manifest, Symbol, Tensor
from daceopt.store.cache import Cache
from tests.codegen.programs import SCALE, scale_source


def test_every_kind_of_memory(tmp_path: Path) -> None:
    """``t = x + c; y = t * seed`` with ``t`` in memory that the caller gives."""
    manifest = Manifest(
        "entry_test",
        inputs=(Tensor("x", "float32", 1),),
        constants=(Tensor("c", "float32", 1),),
        outputs=(Tensor("y", "float32", 1),),
        symbols=(Symbol("n", "x", 0),),
        uses_seed=True,
    )
    program = ProgramSource(
        manifest,
        "for (int64_t i = 0; i < n; ++i) t[i] = x[i] + c[0];\nfor (int64_t i = 0; i < n; ++i) y[i] = t[i] * seed[0];",
        {
            "c": ("float", BufferAddress("constant")),
            "seed": ("int64_t", BufferAddress("seed")),
            "t": ("float", BufferAddress("arena", offset="64 + 4 * int_ceil(n, 16) * 16")),
            "x": ("float", BufferAddress("input")),
            "y": ("float", BufferAddress("output")),
        },
        arena="64 + 8 * int_ceil(n, 16) * 16",
        shapes=(("n",),),
    )
    jobs = [CompileJob(program.text(), "frame")]
    built = build_program(
        program_key("entry_test"), manifest, jobs, {"c": np.array([0.5], np.float32)}, store=Cache(tmp_path)
    )
    x, y, seed = np.arange(33, dtype=np.float32), np.zeros(33, np.float32), np.array([2])
    sizes = built.sizes((33,))
    assert (sizes.arena, sizes.saved, sizes.shapes) == (64 + 8 * 48, 0, ((33,),))
    arena = np.zeros(sizes.arena, np.uint8)
    pointers = [x.ctypes.data, built.constants[0].ctypes.data, y.ctypes.data, 0, arena.ctypes.data, seed.ctypes.data]
    built.run(pointers, (33,))
    np.testing.assert_array_equal(y, 2 * (x + 0.5))
    assert not arena[: 64 + 4 * 48].any()


def test_arrays_may_be_called_as_what_is_around_the_frame(tmp_path: Path) -> None:
    names = ("pointers", "symbols", "status", "seen", "program", "message", "report", "run", "frame", "code", "error")
    manifest = Manifest("names", tuple(Tensor(name, "float32", 1) for name in names))
    buffers = {name: ("float", BufferAddress("input", k)) for k, name in enumerate(names)}
    program = ProgramSource(manifest, "\n".join(f"{name}[0] = {k};" for k, name in enumerate(names)), buffers)
    built = build_program(program_key("names"), manifest, [CompileJob(program.text(), "frame")], store=Cache(tmp_path))
    values = np.full(len(names), -1, np.float32)
    built.run([*(values[k:].ctypes.data for k in range(len(names))), 0, 0, 0])
    assert values.tolist() == list(range(len(names)))


@pytest.mark.parametrize(
    "text",
    ['n"; system("x"); //', "m", "n; exit(1)", "", "system(n)", "n[0]", "n\n#include <x>", "0x" + "é", "{n}"],
)
def test_hostile_expressions_are_refused(text: str) -> None:
    with pytest.raises(BuildError, match="not an integer expression"):
        replace(scale_source(), arena=text).text()


@pytest.mark.parametrize("name", ["", 'a"; system("x"); //', "é", "1a", "a b"])
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(BuildError, match="not a C\\+\\+ identifier"):
        replace(scale_source(), buffers={name: ("float", BufferAddress("input"))}).text()


@pytest.mark.parametrize(("call", "error"), [("fail", RunError), ("fail_index", RunIndexError)])
def test_errors_of_library_calls(tmp_path: Path, call: str, error: type[RunError]) -> None:
    flags = Flags(includes=(str(Path(daceopt.errors.__file__).parent / "libs" / "include"),))
    source = replace(scale_source(f'daceopt::{call}("Gather", "no row 7");'), status_header=True)
    jobs = [CompileJob(source.text(), "frame", flags)]
    program = build_program(program_key("status"), SCALE, jobs, store=Cache(tmp_path))
    for _ in range(2):
        with pytest.raises(error, match="scale: Gather: no row 7") as raised:
            program.run([0] * 5, (1,))
        assert type(raised.value) is error


@pytest.mark.parametrize(
    ("address", "message"),
    [(BufferAddress("input", 3), "input 3 is read, but a call passes 1"), (BufferAddress("stack"), "got 'stack'")],
)
def test_memory_that_no_call_passes(address: BufferAddress, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        replace(scale_source(), buffers={"x": ("float", address)}).text()
