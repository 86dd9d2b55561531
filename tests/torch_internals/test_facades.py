"""What functions of the room promise of PyTorch's C++ half, whose signatures nobody can ask for."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from daceopt.torch_internals import (
    autograd_engine,
    cuda_state,
    decompositions,
    functorch,
    modes,
    raising_branches,
    replacements,
    torch_operators,
)
from daceopt.torch_internals.functional_tensors import (
    FunctionalTensor,
    FunctionalTensorMode,
    has_new_storage,
    is_written,
    set_value,
    value_of,
    views_of,
    without_functionalization,
)


class _Looking(torch.autograd.Function):
    """Keeps what the engine says while its backward runs."""

    seen: tuple[Any, ...] = ()

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        node = ctx.next_functions[0][0]
        _Looking.seen = (
            autograd_engine.current_task(),
            autograd_engine.keeps_graph(),
            autograd_engine.inputs_of_backward(sys._getframe()),
            autograd_engine.will_execute(node) if node.name() != "struct torch::autograd::AccumulateGrad" else None,
        )
        autograd_engine.call_after_backward(lambda: setattr(_Looking, "seen", (*_Looking.seen, "over")))
        return grad * 2


def test_the_engine_tells_of_the_backward_that_runs() -> None:
    x = torch.ones(2, requires_grad=True)
    inner = x * 1
    _Looking.apply(inner).sum().backward(retain_graph=True)
    task, keeps, inputs, executes, over = _Looking.seen
    assert task >= 0 and keeps and list(inputs) == [] and executes and over == "over"
    torch.autograd.grad(_Looking.apply(inner).sum(), inner)
    _, keeps, inputs, *_ = _Looking.seen
    assert not keeps and len(inputs) == 1
    assert autograd_engine.current_task() == -1 and autograd_engine.inputs_of_backward(sys._getframe()) is None


def test_what_autograd_knows_of_this_thread() -> None:
    assert autograd_engine.saved_tensors_hooks() is None and not autograd_engine.is_forward_differentiated()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), forward_ad.dual_level():
        assert autograd_engine.saved_tensors_hooks() is not None and autograd_engine.is_forward_differentiated()
    x, before = torch.ones(2, requires_grad=True), autograd_engine.next_sequence_number()
    _ = x * 2
    assert autograd_engine.next_sequence_number() == before + 1
    y = torch.ones(2)
    with autograd_engine.unversioned_writes((y,)):
        y.add_(1)
    assert y._version == 0


def test_batches_of_functorch() -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        assert functorch.innermost_transform() is not None and functorch.are_transforms_active()
        assert functorch.is_batched(x) and functorch.is_wrapped(x)
        assert functorch.level_of(x) == functorch.depth() and functorch.batch_axis(x) == 1
        assert functorch.unwrapped(x).shape == (3, 2)
        assert functorch.unwrap_dead_wrappers((x, 2)) == (x, 2)
        with functorch.outside_of_transform():
            assert functorch.innermost_transform() is None
        return functorch.add_batch(functorch.unwrapped(x) * 2, 1, functorch.level_of(x))

    y = torch.vmap(look, in_dims=1, out_dims=1)(torch.ones(3, 2))
    assert torch.equal(y, torch.full((3, 2), 2.0)) and functorch.innermost_transform() is None
    assert not functorch.is_in_old_vmap() and not functorch.is_old_batched(torch.ones(1))
    assert functorch.old_vmap_depth() == 0 == functorch.depth()


def test_modes_that_look_at_calls() -> None:
    assert modes.function_mode_count() == 0 and modes.jit_trace() is None and modes.operator_mode_count() == 0
    with torch.device("cpu"), TorchFunctionMode() as mode:
        looking, count = modes.function_modes(), modes.function_mode_count()
    assert looking == [mode] and count == 2
    seen = []
    with pytest.warns((DeprecationWarning, FutureWarning)):  # since 2.14 the second
        torch.jit.trace(lambda x: (seen.append(modes.jit_trace() is None), x * 2)[1], torch.ones(2), check_trace=False)
    assert seen == [False]
    assert not modes.has_global_module_hook() and not modes.has_global_optimizer_hook()
    hooks = [
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None),
        register_optimizer_step_pre_hook(lambda *_: None),
    ]
    assert modes.has_global_module_hook() and modes.has_global_optimizer_hook()
    for hook in hooks:
        hook.remove()


def test_functional_tensors_are_written_by_new_values() -> None:
    ones, zeros = torch.ones(2, 3), torch.zeros(3)
    with without_functionalization(), FunctionalTensorMode():
        x = FunctionalTensor.to_functional(ones)
        assert not is_written(x) and not has_new_storage(x)
        row = x[0]
        row.add_(1)
        assert is_written(x) and [type(v).__name__ for v in views_of(row)] == ["select_int_ViewMeta"]
        written = value_of(x)
        set_value(row, zeros)
        values = value_of(x)
    assert torch.equal(written, torch.tensor([[2.0] * 3, [1.0] * 3]))
    assert torch.equal(values, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_what_the_dispatcher_knows_of_an_operator() -> None:
    assert "aten::add.Tensor" in torch_operators.operator_names()
    assert torch_operators.has_kernel("aten::add.Tensor", "CPU") and not torch_operators.has_kernel(
        "aten::add.Tensor", "CompositeImplicitAutograd"
    )
    assert torch_operators.registrations("aten::add.Tensor").partition("debug:")[0].startswith("name: aten::add.Tensor")
    assert (
        torch_operators.custom_definition("aten::add") is None
        and torch_operators.fake_kernels("aten::add.Tensor") == []
    )
    kwargs = {"use_reentrant": False, "scale": 2}
    assert torch_operators.checkpoint_arguments(kwargs) == {"scale": 2}


def test_memory_and_switches() -> None:
    storage = torch.ones(4).untyped_storage()
    assert cuda_state.storage_use_count(storage._cdata) == 1
    assert cuda_state.empty_strided_cpu((2, 3), (1, 2), torch.float32).stride() == (1, 2)
    assert cuda_state.matmul_precision() == torch.get_float32_matmul_precision()
    before = cuda_state.precision("cuda", "matmul")
    cuda_state.set_precision("cuda", "matmul", "tf32")
    try:
        assert cuda_state.precision("cuda", "matmul") == "tf32"
    finally:
        cuda_state.set_precision("cuda", "matmul", before)


def test_files_for_running_programs_bring_no_compiler() -> None:
    """What the runtime imports of the room is there without Dynamo."""
    light = "autograd_engine, cuda_state, frame_evaluation, functorch, modes, pytree, scripting, torch_operators"
    heavy = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy", "torch._inductor")
    code = f"import sys; from daceopt.torch_internals import {light}; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_operators_are_whole_in_a_block_and_have_their_own_kernels_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, key = torch.ops.aten.matmul.default, torch._C.DispatchKey.CPU
    before = dict(operator.py_kernels)
    blocks = []
    for form in (_stays, _stays, _is_else, _stays):
        with decompositions.whole_operators({operator: form}):
            blocks.append(dict(operator.py_kernels))
            with decompositions.whole_operators({operator: form}):
                assert operator.py_kernels == blocks[-1]
            assert operator.py_kernels == blocks[-1]
            with FakeTensorMode():
                assert (torch.ones(2, 3) @ torch.ones(3, 4)).shape == (2, 4)
        assert operator.py_kernels == before
    assert [set(kernels) for kernels in blocks] == [set(blocks[0])] * 4 and set(blocks[0]) > set(before)
    forms = [kernels[torch_operators.COMPOSITE] for kernels in blocks]
    assert forms == [_stays, _stays, _is_else, _stays]
    monkeypatch.setitem(operator.py_kernels, key, _is_else)
    with decompositions.whole_operators({operator: _stays}):
        assert operator.py_kernels[key] is _is_else, "a kernel of somebody else, since the block before"
    assert operator.py_kernels == {**before, key: _is_else}


def _stays(*_: object, **__: object) -> object:
    return NotImplemented


def _is_else(*_: object, **__: object) -> object:
    return NotImplemented


def _raises(x: torch.Tensor) -> torch.Tensor:
    if x.any():
        raise IndexError("some", 3)
    return x


def _returns(x: torch.Tensor) -> torch.Tensor:
    if x.all():
        return x
    x = x + 1
    raise ValueError(f"{x}")


def _may_return(x: torch.Tensor) -> torch.Tensor:
    if x.any() and x.all():
        raise IndexError("some")
    return x


def _is_caught(x: torch.Tensor) -> torch.Tensor:
    with contextlib.suppress(IndexError):
        if x.any():
            raise IndexError("some")
    return x


@pytest.mark.parametrize(
    ("function", "side"),
    [
        (_raises, (True, "builtins:IndexError", ("some", 3))),
        (_returns, (False, "", ())),
        (_may_return, None),
        (_is_caught, None),
    ],
)
def test_the_side_of_a_branch_that_only_raises(monkeypatch: pytest.MonkeyPatch, function: Any, side: Any) -> None:
    seen = []

    def look(original: Any, translator: Any, instruction: Any) -> None:
        if translator.f_code is function.__code__:
            assert not raising_branches.is_branched_on(translator)
            seen.append(raising_branches.raising_side(translator, instruction))
        original(translator, instruction)

    for name in replacements.branches():
        owner, attribute = replacements.owner_of(name)
        monkeypatch.setattr(owner, attribute, functools.partialmethod(_called, look, getattr(owner, attribute)))
    replacements.renew_tables()
    try:
        torch.compile(function, backend="eager")(torch.full((2,), function is _returns))
    finally:
        monkeypatch.undo()
        replacements.renew_tables()
    assert seen[0] == side


def _called(translator: Any, look: Any, original: Any, instruction: Any) -> None:
    look(original, translator, instruction)
