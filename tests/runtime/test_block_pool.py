"""The block pool: what may be reused, and above all what may not."""

from __future__ import annotations

import copy
import io
import os
import threading

import pytest
import torch

from daceopt.runtime import block_pool

ELEMENTS = block_pool.THRESHOLD  # four bytes each: four times the threshold


@pytest.fixture(autouse=True)
def _empty_pool():
    block_pool.empty()
    yield
    block_pool.empty()


def large(value: float = 1.0) -> torch.Tensor:
    return block_pool.allocate((ELEMENTS,), torch.float32).fill_(value)


def assert_never_reused(address: int) -> None:
    held = [block_pool.allocate((ELEMENTS,), torch.float32) for _ in range(4)]
    assert address not in [t.data_ptr() for t in held]


def test_shape_dtype_and_alignment():
    t = block_pool.allocate((3, ELEMENTS, 2), torch.int64)
    assert t.shape == (3, ELEMENTS, 2) and t.dtype == torch.int64 and t.is_contiguous()
    assert t.data_ptr() % 64 == 0


def test_small_tensors_bypass_the_pool():
    before = block_pool.stats()
    block_pool.allocate((4, 4), torch.float32)
    assert block_pool.stats() == before


def test_a_dead_tensor_s_block_is_reused():
    t = large()
    address = t.data_ptr()
    del t
    assert large().data_ptr() == address


def test_nearly_equal_sizes_share_a_block():
    t = block_pool.allocate((ELEMENTS,), torch.float32)
    address = t.data_ptr()
    del t
    assert block_pool.allocate((ELEMENTS - 7,), torch.float32).data_ptr() == address


HOLDERS = {
    "tensor": lambda t: t,
    "view": lambda t: t[5:6],
    "data": lambda t: t.data,
    "detach": lambda t: t.detach(),
    "bits": lambda t: t.view(torch.int32)[:1],
    "storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.numpy()[:3],
    "dlpack": lambda t: t.__dlpack__(),
    "buffer": lambda t: memoryview(t.numpy()),
    "saved": lambda t: torch.ones(1, requires_grad=True) * t,
    "grad": lambda t: _parameter_with_grad(t),
    "module": lambda t: torch.nn.ParameterList([torch.nn.Parameter(t)]),
}


def _parameter_with_grad(t: torch.Tensor) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.zeros(t.shape))
    parameter.grad = t
    return parameter


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_block_that_anything_can_read_is_not_handed_out(holder):
    t = large()
    address = t.data_ptr()
    kept = HOLDERS[holder](t)
    del t
    assert_never_reused(address)
    del kept


def test_deepcopy_and_pickle_own_their_memory():
    t = large(3.0)
    clone, stream = copy.deepcopy(t), io.BytesIO()
    torch.save(t, stream)
    stream.seek(0)
    address = t.data_ptr()
    del t
    large(0.0)
    assert clone.data_ptr() != address
    assert torch.equal(clone, torch.full((ELEMENTS,), 3.0))
    assert torch.equal(torch.load(stream), torch.full((ELEMENTS,), 3.0))


def test_resize_works_and_the_pool_forgets_the_block():
    t = large(2.0)
    blocks = block_pool.stats()["blocks"]
    t.resize_(3 * ELEMENTS)
    assert torch.equal(t[:ELEMENTS], torch.full((ELEMENTS,), 2.0))
    del t
    assert large().untyped_storage().nbytes() < 3 * ELEMENTS * 4
    assert block_pool.stats()["blocks"] == blocks


def test_share_memory_works_and_the_pool_forgets_the_block():
    t = large(2.0)
    t.share_memory_()
    assert t.is_shared() and torch.equal(t, torch.full((ELEMENTS,), 2.0))
    del t
    assert not large().is_shared()


def test_a_numpy_view_makes_the_block_unfit_for_reuse_only_once():
    t = large()
    t.numpy()
    del t
    fresh = large()
    fresh.resize_(2 * ELEMENTS)
    assert fresh.numel() == 2 * ELEMENTS


def test_tensors_may_be_changed_in_place_under_autograd():
    x = torch.ones(ELEMENTS, requires_grad=True)
    out = large()
    assert not out._is_view()
    out.mul_(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(ELEMENTS))


def test_unused_blocks_are_trimmed():
    t = block_pool.allocate((64, ELEMENTS), torch.float32)
    nbytes = t.untyped_storage().nbytes()
    del t
    for _ in range(600):
        block_pool.allocate((ELEMENTS,), torch.float32)
    assert block_pool.stats()["bytes"] < nbytes


def test_a_working_set_in_use_every_step_is_kept():
    def step() -> None:
        [block_pool.allocate((ELEMENTS + 32 * 1024 * k,), torch.float32) for k in range(40)]

    step()
    misses = block_pool.stats()["misses"]
    for _ in range(20):
        step()
    assert block_pool.stats()["misses"] == misses


@pytest.mark.parametrize("shape", [(), (0, 3), (4, 1, 2), (ELEMENTS,)])
def test_an_allocator_gives_memory_of_its_own_each_time(shape):
    make = block_pool.allocator(shape, torch.int64)
    first, second = make().fill_(1), make().fill_(2)
    for tensor, value in ((first, 1), (second, 2)):
        assert tensor.shape == shape and tensor.dtype is torch.int64 and tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() >= tensor.nbytes and bool((tensor == value).all())


@pytest.mark.parametrize("columns", [5, ELEMENTS])
def test_an_allocator_of_strides_makes_no_views(columns):
    make = block_pool.allocator((3, 1, columns), torch.float32, (1, 7, 3))
    first, second = make().fill_(1), make().fill_(2)
    assert first.stride() == second.stride() == (1, 7, 3) and not first._is_view()
    assert bool((first == 1).all()) and bool((second == 2).all())


def test_empty_gives_free_blocks_back():
    kept, gone = large(), large()
    del gone
    assert block_pool.empty() >= ELEMENTS * 4
    assert block_pool.stats()["free_bytes"] == 0 and block_pool.stats()["blocks"] == 1
    del kept


def test_many_threads_never_share_a_block():
    errors: list[str] = []

    def work(mark: int) -> None:
        for _ in range(50):
            t = block_pool.allocate((ELEMENTS,), torch.float32)
            t[::4096] = mark
            if not bool((t[::4096] == mark).all()):
                errors.append(f"block shared with thread {mark}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert errors == []


def test_a_forked_child_can_allocate():
    kept = large(5.0)
    pid = os.fork()
    if pid == 0:
        # One element only: OpenMP's threads do not survive a fork, so a child must not start a parallel loop.
        t = block_pool.allocate((ELEMENTS,), torch.float32)
        t[0] = 7.0
        os._exit(0 if float(kept[0]) == 5.0 and float(t[0]) == 7.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("size", [3, 300])
def test_zeros_have_the_form_that_is_asked_for(dtype, size):
    zeros = block_pool.zeros((2, size, size), dtype, (1, 2 * size, 2))
    assert torch.equal(zeros, torch.zeros(2, size, size, dtype=dtype)) and zeros.stride() == (1, 2 * size, 2)
    assert block_pool.zeros((size, 0), dtype).shape == (size, 0)
