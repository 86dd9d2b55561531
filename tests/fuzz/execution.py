"""What a call of a program gives: results, gradients, what it changed, and which results share memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.fuzz.program import Program
from tests.opinfo.outcome import Outcome, cotangent


class Arguments:
    """The module of a program and the arguments of a call, made anew."""

    def __init__(self, program: Program, *, wide: bool = False) -> None:
        torch.manual_seed(0)
        self.module, self.arguments = program.make(wide=wide)
        if wide:
            torch.manual_seed(0)
            self.module.load_state_dict(program.make()[0].state_dict())

    def leaves(self) -> list[torch.Tensor]:
        """What has a gradient."""
        return [t for t in (*self.arguments, *self.module.parameters()) if t.requires_grad]


def run(
    arguments: Arguments, fn: Callable[..., Any] | None = None, within: AbstractContextManager[Any] | None = None
) -> Outcome:
    """Call the module, or ``fn`` in its place, and differentiate, under the context ``within``."""
    found = Outcome()
    with warnings.catch_warnings(), within or nullcontext():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        wanted = arguments.leaves()  # a call may make others require gradients
        results = (fn or type(arguments.module).__call__)(arguments.module, *arguments.arguments)
        found.add("result", results)
        found.values["shared memory"] = _shared([*pytree.tree_leaves(results), *arguments.arguments])
        found.add("changed", [t.detach().clone() for t in arguments.arguments])
        found.add("buffer", [t.detach().clone() for t in arguments.module.buffers()])
        found.add("gradient", _gradients(pytree.tree_leaves(results), wanted))
    return found


def _gradients(results: Sequence[Any], wanted: list[torch.Tensor]) -> list[Any]:
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs or not wanted:
        return []
    with _disable_current_modes():  # they pass through bfloat16, whose units in the last place are no rounding of ours
        cotangents = [cotangent(r) for r in outputs]
    return [False if g is None else g for g in torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)]


def strides(outcome: Outcome) -> list[tuple[int, ...]]:
    """Of its results."""
    found = outcome.values.items()
    return [t.stride() for what, t in found if what.startswith("result") and isinstance(t, torch.Tensor)]


def promised_strides(program: Program) -> list[tuple[int, ...]]:
    """Those of results by PyTorch's shape rules, which a trace knows, where its operators may give others."""
    with FakeTensorMode(), torch.no_grad():
        module, arguments = program.make()
        leaves = pytree.tree_leaves(module(*arguments))
    return [t.stride() for t in leaves if isinstance(t, torch.Tensor)]


def _shared(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each the first whose memory it shares."""
    where = [t.untyped_storage().data_ptr() if t.numel() else None for t in tensors]
    return [k if w is None else where.index(w) for k, w in enumerate(where)]


EXACT = (
    "view",
    "reshape",
    "clone",
    "copy",
    "cat",
    "stack",
    "index",
    "gather",
    "select",
    "slice",
    "expand",
    "relu",
    "max",
    "min",
    "clamp",
    "where",
    "neg",
    "abs",
    "fill",
    "zero",
    "one",
    "sort",
    "topk",
    "pad",
    "permute",
    "transpose",
    "flip",
    "roll",
    "unsqueeze",
    "squeeze",
    "detach",
    "alias",
    "unbind",
    "split",
    "diagonal",
    "as_strided",
    "scatter",
    "full",
    "empty",
    "sign",
    "floor",
    "embedding",
    "take",
    "unfold",
    "tril",
    "repeat",
    "lift",
    "arange",
    "threshold",
    "amax",
    "amin",
    "im2col",
    "set",
)


class Rounding(TorchDispatchMode):
    """Each operator's result moves by a unit in its last place or so: what that changes is what rounding explains."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::").strip("_")
        in_place = func._schema.name.endswith("_")
        if func._schema.is_mutable > in_place or name == "t" or name.removeprefix("new_").startswith(EXACT):
            return found
        return pytree.tree_map_only(torch.Tensor, partial(self._moved, in_place), found)

    def _moved(self, in_place: bool, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or (tensor._is_view() and not in_place):
            return tensor
        steps = torch.randint(-1, 2, tensor.shape, dtype=torch.float64, generator=self._rng)
        return tensor.mul_((1 + steps * torch.finfo(tensor.dtype).eps).to(tensor.dtype)) if tensor.numel() else tensor


def disturbed(program: Program, times: int = 4) -> Iterator[Outcome]:
    """Outcomes of eager PyTorch with other roundings."""
    for seed in range(times):
        yield run(Arguments(program), within=Rounding(seed))
