"""The entry source around what DaCe generates, and its refusal of anything that is not a plain expression."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import daceopt.errors
from daceopt.codegen.assemble import build_program, program_key
from daceopt.codegen.compiler import CompileJob, Flags
from daceopt.codegen.entry import Argument, FrameParameter, FrameProgram, entry_source, signature
from daceopt.errors import BuildError, RunError, RunIndexError
from daceopt.runtime.manifest import Manifest, Symbol, Tensor
from daceopt.store.cache import Cache
from tests.codegen.programs import SCALE, frame

PROGRAM = FrameProgram(
    "scale",
    (FrameParameter("x", "float", True), FrameParameter("n", "int64_t", False)),
    (Argument("input"), Argument("symbol")),
    shapes=(("n",),),
)


def dace_frame() -> tuple[str, tuple[FrameParameter, ...], tuple[str, ...]]:
    """Frame of ``t = x + c; y = t * seed`` with ``t`` in memory that the caller gives."""
    import dace
    from dace.codegen.codegen import generate_code

    n = dace.symbol("n", dace.int64)
    sdfg = dace.SDFG("entry_test")
    for name, shape, dtype in (
        ("x", [n], dace.float32),
        ("c", [1], dace.float32),
        ("t", [n], dace.float32),
        ("y", [n], dace.float32),
        ("seed", [1], dace.int64),
    ):
        sdfg.add_array(name, shape, dtype)
    state = sdfg.add_state()
    memlet = dace.Memlet
    _, _, middle = state.add_mapped_tasklet(
        "add",
        {"i": "0:n"},
        {"a": memlet("x[i]"), "b": memlet("c[0]")},
        "o = a + b",
        {"o": memlet("t[i]")},
        external_edges=True,
    )
    t = state.out_edges(middle)[0].dst
    state.add_mapped_tasklet(
        "scale",
        {"i": "0:n"},
        {"a": memlet("t[i]"), "b": memlet("seed[0]")},
        "o = a * b",
        {"o": memlet("y[i]")},
        external_edges=True,
        input_nodes={"t": t},
    )
    code = next(part.clean_code for part in generate_code(sdfg) if part.title == "Frame")
    return code, *signature(sdfg)


def test_program_generated_by_dace(tmp_path: Path) -> None:
    code, parameters, init = dace_frame()
    assert [p.name for p in parameters] == ["c", "seed", "t", "x", "y", "n"]
    manifest = Manifest(
        "entry_test",
        inputs=(Tensor("x", "float32", 1),),
        constants=(Tensor("c", "float32", 1),),
        outputs=(Tensor("y", "float32", 1),),
        symbols=(Symbol("n", "x", 0),),
        uses_seed=True,
    )
    sources = {
        "c": Argument("constant"),
        "seed": Argument("seed"),
        "t": Argument("arena", offset="64 + 4 * int_ceil(n, 16) * 16"),
        "x": Argument("input"),
        "y": Argument("output"),
        "n": Argument("symbol"),
    }
    program = FrameProgram(
        "entry_test",
        parameters,
        tuple(sources[p.name] for p in parameters),
        init,
        arena="64 + 8 * int_ceil(n, 16) * 16",
        shapes=(("n",),),
    )
    jobs = [CompileJob(code, "frame", label="entry_test"), CompileJob(entry_source(program, manifest), "entry")]
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


@pytest.mark.parametrize(
    "text",
    ['n"; system("x"); //', "m", "n; exit(1)", "", "system(n)", "n[0]", "n\n#include <x>", "0x" + "é", "{n}"],
)
def test_hostile_expressions_are_refused(text: str) -> None:
    with pytest.raises(BuildError, match="not an integer expression"):
        entry_source(replace(PROGRAM, arena=text), SCALE)


@pytest.mark.parametrize("name", ["", 'a"; system("x"); //', "é", "1a", "a b"])
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(BuildError, match="not a C\\+\\+ identifier"):
        entry_source(replace(PROGRAM, name=name), SCALE)
    with pytest.raises(BuildError, match="not a C\\+\\+ type"):
        entry_source(replace(PROGRAM, parameters=(FrameParameter("x", name + ";", True), PROGRAM.parameters[1])), SCALE)


@pytest.mark.parametrize(("call", "error"), [("fail", RunError), ("fail_index", RunIndexError)])
def test_errors_of_library_calls(tmp_path: Path, call: str, error: type[RunError]) -> None:
    flags = Flags(includes=(str(Path(daceopt.errors.__file__).parent / "libs" / "include"),))
    source = frame(
        "scale", "float* x, int64_t n", f'daceopt::{call}("Gather", "no row 7");', '#include "daceopt/status.h"'
    )
    jobs = [
        CompileJob(source, "kernel", flags),
        CompileJob(entry_source(replace(PROGRAM, status_header=True), SCALE), "entry", flags),
    ]
    program = build_program(program_key("status"), SCALE, jobs, store=Cache(tmp_path))
    for _ in range(2):
        with pytest.raises(error, match="scale: Gather: no row 7") as raised:
            program.run([0] * 5, (1,))
        assert type(raised.value) is error


def test_arguments_that_do_not_exist() -> None:
    with pytest.raises(BuildError, match="input 3 is asked for, but there are 1"):
        entry_source(replace(PROGRAM, arguments=(Argument("input", 3), Argument("symbol"))), SCALE)
    with pytest.raises(BuildError, match="got 1 arguments"):
        entry_source(replace(PROGRAM, arguments=(Argument("input"),)), SCALE)
    with pytest.raises(BuildError, match="got 'stack'"):
        entry_source(replace(PROGRAM, arguments=(Argument("stack"), Argument("symbol"))), SCALE)


@pytest.mark.parametrize(
    ("ctype", "shapes", "message"),
    [
        ("double", (("n",),), "as double with 1 dimensions; its manifest says float with 1 dimensions"),
        ("float", (("n", "2"),), "as float with 2 dimensions; its manifest says float with 1 dimensions"),
    ],
)
def test_results_are_what_the_manifest_says(ctype: str, shapes: tuple, message: str) -> None:
    writing = replace(PROGRAM, parameters=(FrameParameter("y", ctype, True), PROGRAM.parameters[1]), shapes=shapes)
    with pytest.raises(BuildError, match=message):
        entry_source(replace(writing, arguments=(Argument("output"), Argument("symbol"))), SCALE)
