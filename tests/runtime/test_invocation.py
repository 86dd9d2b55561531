"""Memory and addresses of single calls of hand-made programs."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from daceopt.errors import BuildError
from daceopt.runtime import block_pool
from daceopt.runtime.executable import ProgramSizes
from daceopt.runtime.invocation import ExecutableEntry, torch_dtype
from daceopt.runtime.manifest import Manifest, Symbol, Tensor


class Recording:
    """Keeps the addresses of its calls; ``during`` runs inside of each."""

    constants = ()

    def __init__(self, arena: int, during=lambda: None) -> None:
        self.arena, self.during, self.pointers = arena, during, []
        one = (Tensor("input:0", "float32", 1),), (Tensor("output:0", "bfloat16", 1),)
        self.manifest = Manifest("p", one[0], (), one[1], (Symbol("n", "input:0", 0),))

    def sizes(self, symbols):
        return ProgramSizes(self.arena * symbols[0], 8 * symbols[0], (symbols,))

    def run(self, pointers, symbols):
        self.pointers.append(pointers)
        self.during()


def call(entry: ExecutableEntry, n: int) -> None:
    memory = entry.memory((n,))
    entry.invoke([1], memory.allocate(), None, None, (n,), memory.arena)


def arenas(program: Recording) -> list[int]:
    return [pointers[-2] for pointers in program.pointers]


def test_memory_of_a_call():
    memory = ExecutableEntry(Recording(64)).memory((5,))
    (out,), saved = memory.allocate(), memory.saved()
    assert out.shape == (5,) and out.dtype is torch.bfloat16 and saved.shape == (40,) and memory.arena == 320


def test_zeros_in_place_of_an_absent_gradient_are_those_of_the_call_before():
    memory = ExecutableEntry(Recording(0)).memory((5,))
    zero = memory.zero(0)
    assert torch.equal(zero, torch.zeros(5, dtype=torch.bfloat16)) and memory.zero(0) is zero


def test_a_small_arena_serves_one_call_after_another():
    program = Recording(64)
    entry = ExecutableEntry(program)
    for n in (2, 1, 2, 3):
        call(entry, n)
    first, second, third, larger = arenas(program)
    assert first == second == third and larger % 64 == 0


def test_calls_inside_of_each_other_have_arenas_of_their_own():
    depth = []

    def again():
        if len(depth) < 3:
            depth.append(1)
            call(entry, 1)

    program = Recording(64, again)
    entry = ExecutableEntry(program)
    call(entry, 1)
    assert len(set(arenas(program))) == 4


def test_large_arenas_return_to_the_pool():
    gc.collect()  # what other tests left would be freed in between
    block_pool.empty()
    before = block_pool.stats()
    program = Recording(block_pool.THRESHOLD)
    entry = ExecutableEntry(program)
    call(entry, 1)
    after = block_pool.stats()
    assert after["free_bytes"] - before["free_bytes"] == after["bytes"] - before["bytes"] > 0


def test_what_calls_of_very_many_sizes_need_is_forgotten():
    entry = ExecutableEntry(Recording(1))
    found = [entry.memory((n,)) for n in range(600)]
    assert len(entry._memory) < 300 and entry.memory((599,)) is found[-1]


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("int4", torch.uint8), ("float6_e2m3fn", torch.uint8)]
)
def test_types_below_a_byte_stand_in_one(name, dtype):
    assert torch_dtype(name) is dtype


def test_a_name_that_is_no_role_is_refused():
    program = Recording(0)
    program.manifest = Manifest("p", (), (), (Tensor("result", "float32", 1),), ())
    with pytest.raises(BuildError, match="'result'"):
        ExecutableEntry(program)


def test_numbers_that_decide_no_size_need_no_memory_of_their_own():
    program = Recording(64)
    symbols = (Symbol("n", "input:0", 0), Symbol("step", "input:1", 1))
    program.manifest = replace(program.manifest, symbols=symbols, numbers=("step",))
    entry = ExecutableEntry(program)
    assert entry.memory((5, 1)) is entry.memory((5, 2)) is not entry.memory((6, 2))
