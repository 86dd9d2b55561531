"""The bridge alone: pointers, memory and autograd of hand-made programs."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from daceopt.errors import BuildError, RunError
from daceopt.runtime import block_pool
from daceopt.runtime.boundary import TensorBoundary
from daceopt.runtime.bridge import TorchProgram
from daceopt.runtime.executable import ProgramSizes
from daceopt.runtime.manifest import Manifest, Symbol, Tensor

LARGE = block_pool.THRESHOLD  # elements: four times the pool's threshold in float32


def f32(role: str) -> Tensor:
    return Tensor(role, "float32", 1)


class Executable:
    """``run`` receives float32 vectors of the call's length instead of addresses."""

    def __init__(self, function, inputs, outputs, *, saves=False, uses_seed=False, constants=()):
        self.function = function
        self.constants = tuple(constants)
        names = [f32(f"constant:{k}") for k in range(len(self.constants))]
        symbol = Symbol("n", inputs[0], 0)
        self.manifest = Manifest(
            "p", tuple(map(f32, inputs)), tuple(names), tuple(map(f32, outputs)), (symbol,), uses_seed, saves
        )

    def sizes(self, symbols):
        (n,) = symbols
        return ProgramSizes(64, 4 * n if self.manifest.saves else 0, ((n,),) * len(self.manifest.outputs))

    def run(self, pointers, symbols):
        (n,) = symbols
        *tensors, saved, arena, seed = pointers
        assert arena % 64 == 0 and arena
        assert len(pointers) == self.manifest.pointer_count
        arrays = [_array(p, n) for p in tensors]
        self.function(
            *arrays,
            saved=_array(saved, n) if saved or not n else None,
            seed=ctypes.c_int64.from_address(seed).value if seed else None,
        )


def _array(address: int, n: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * n).from_address(address)) if n else np.empty(0, np.float32)


def product() -> TorchProgram:
    """x * y with the product's factor x saved in the block."""

    def forward(x, y, out, saved, seed):
        out[:] = x * y
        saved[:] = x

    def backward(y, grad, dx, dy, saved, seed):
        dx[:] = grad * y
        dy[:] = grad * saved

    pair = SimpleNamespace(
        forward=Executable(forward, ["input:0", "input:1"], ["output:0"], saves=True),
        backward=Executable(backward, ["input:1", "grad:0"], ["grad_input:0", "grad_input:1"], saves=True),
    )
    return TorchProgram(pair, 2)


def leaves(n: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.arange(n, dtype=torch.float32) + 1).requires_grad_(), torch.full((n,), 3.0, requires_grad=True)


def test_gradients():
    x, y = leaves()
    (out,) = product()([x, y])
    out.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert x.grad.tolist() == [3, 6, 9, 12] and y.grad.tolist() == [1, 4, 9, 16]


@pytest.mark.parametrize("n", [4, LARGE])
def test_each_call_keeps_what_it_saved_until_its_own_backward(n):
    program = product()
    x, y = leaves(n)
    outs = [program([x * k, y])[0] for k in (1, 2, 3)]
    for k, out in zip((1, 2, 3), outs, strict=True):
        (gradient,) = torch.autograd.grad(out.sum(), y)
        torch.testing.assert_close(gradient, x.detach() * k)


def test_memory_returns_to_the_pool_when_the_graph_dies():
    block_pool.empty()
    program = product()
    x, y = (t.detach().requires_grad_() for t in leaves(LARGE))
    for _ in range(5):
        (out,) = program([x, y])
        torch.autograd.grad(out.sum(), [x, y])
        del out
    stats = block_pool.stats()
    assert stats["blocks"] <= 4 and stats["free_bytes"] == stats["bytes"]


def test_expanded_and_missing_gradients():
    x, y = leaves()
    (out,) = product()([x, y])
    out.sum().backward()  # a gradient with stride 0
    assert y.grad.tolist() == [1, 2, 3, 4]


def test_only_wanted_gradients_are_returned():
    x, y = leaves()
    y.requires_grad_(False)
    (out,) = product()([x, y])
    out.sum().backward()
    assert y.grad is None and x.grad.tolist() == [3, 3, 3, 3]


def test_saved_inputs_are_guarded_by_version_counters():
    x, y = leaves()
    (out,) = product()([x, y])
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_two_outputs_of_which_one_has_a_gradient():
    def forward(x, a, b, saved, seed):
        a[:], b[:] = 2 * x, 3 * x

    def backward(ga, gb, dx, saved, seed):
        dx[:] = 2 * ga + 3 * gb

    pair = SimpleNamespace(
        forward=Executable(forward, ["input:0"], ["output:0", "output:1"]),
        backward=Executable(backward, ["grad:0", "grad:1"], ["grad_input:0"]),
    )
    x, _ = leaves()
    a, b = TorchProgram(pair, 1)([x])
    b.sum().backward()
    assert a.requires_grad and x.grad.tolist() == [3, 3, 3, 3]


def test_outputs_come_in_the_order_of_their_roles_and_constants_are_passed():
    def forward(x, c, b, a, saved, seed):
        a[:], b[:] = x, c

    constants = [np.full(4, 9, np.float32)]
    executable = Executable(forward, ["input:0"], ["output:1", "output:0"], constants=constants)
    a, b = TorchProgram(SimpleNamespace(forward=executable, backward=None), 1)([torch.ones(4)])
    assert a.tolist() == [1] * 4 and b.tolist() == [9] * 4


def test_buffers_are_updated_in_place_and_backward_sees_the_old_value():
    def forward(x, running, out, new, saved, seed):
        out[:], new[:] = x * running, running + 1

    def backward(running, grad, dx, saved, seed):
        dx[:] = grad * running

    pair = SimpleNamespace(
        forward=Executable(forward, ["input:0", "input:1"], ["output:0", "output:1"]),
        backward=Executable(backward, ["input:1", "grad:0"], ["grad_input:0"]),
    )
    program = TorchProgram(pair, 2, TensorBoundary(mutations=[(1, 1)]))
    x, running = torch.ones(4, requires_grad=True), torch.full((4,), 5.0)
    out = program([x, running])[0]
    assert running.tolist() == [6] * 4
    out.sum().backward()
    assert x.grad.tolist() == [5] * 4


def test_backward_reuses_the_seed_of_its_forward():
    seeds = []

    def forward(x, out, saved, seed):
        seeds.append(seed)
        out[:] = x

    def backward(grad, dx, saved, seed):
        seeds.append(seed)
        dx[:] = grad

    pair = SimpleNamespace(
        forward=Executable(forward, ["input:0"], ["output:0"], uses_seed=True),
        backward=Executable(backward, ["grad:0"], ["grad_input:0"], uses_seed=True),
    )
    program, x = TorchProgram(pair, 1), torch.ones(4, requires_grad=True)
    first, second = program([x])[0], program([x])[0]
    second.sum().backward(), first.sum().backward()
    assert seeds[0] != seeds[1] and seeds[2:] == [seeds[1], seeds[0]]


def test_an_error_of_the_program_leaves_buffers_alone():
    def forward(x, running, out, new, saved, seed):
        raise RunError("index out of range")

    executable = Executable(forward, ["input:0", "input:1"], ["output:0", "output:1"])
    running = torch.zeros(4)
    with pytest.raises(RunError, match="out of range"):
        TorchProgram(SimpleNamespace(forward=executable, backward=None), 2, TensorBoundary(mutations=[(1, 1)]))(
            [torch.ones(4), running]
        )
    assert running.tolist() == [0] * 4


def test_an_empty_batch():
    x, y = leaves(0)
    (out,) = product()([x, y])
    out.sum().backward()
    assert out.shape == (0,) and y.grad.shape == (0,)


def test_threads_have_their_own_memory():
    program, wrong = product(), []

    def work(k: int) -> None:
        for _ in range(20):
            x, y = torch.full((LARGE,), float(k), requires_grad=True), torch.ones(LARGE, requires_grad=True)
            program([x, y])[0].sum().backward()
            if not bool((y.grad[::1024] == k).all()):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert wrong == []


def test_names_that_are_no_roles_are_refused():
    executable = Executable(lambda *a, **k: None, ["input:0"], ["result"])
    with pytest.raises(BuildError, match="'result'"):
        TorchProgram(SimpleNamespace(forward=executable, backward=None), 1)
