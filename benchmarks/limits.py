"""What a machine cannot do without: the bytes and operations that a module must spend, in seconds at measured rates."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.checking import results
from benchmarks.contenders import Inputs
from daceopt.cost.rates import rates


def byte_limit(model: nn.Module, inputs: Inputs, training: bool) -> float:
    """Seconds in which memory delivers what a kernel that keeps everything in registers has to move: its inputs and
    result; backward again the inputs, the result's gradient and the gradients."""
    found = results(copy.deepcopy(model), inputs, training)()
    given = _bytes([*inputs, *model.parameters()])
    moved = given + _bytes(found[:1])
    if training:
        moved += given + _bytes(found)
    return rates().seconds(moved, 0.0, threads=torch.get_num_threads())


def product_limit(model: nn.Module, inputs: Inputs, training: bool) -> float:
    """Seconds of a network's products and convolutions at the rate of the best library's, plus those of reading inputs
    and parameters and writing results (and gradients) once. PyTorch's own counter says how many those are."""
    run = results(copy.deepcopy(model), inputs, training)
    with FlopCounterMode(display=False) as counter, _counted_attention():
        found = run()
    moved = _bytes([*inputs, *model.parameters(), *found])
    machine = rates()
    product = max([machine.product, *(rate for _, rate in machine.products)])
    return machine.seconds(moved, 0.0, threads=torch.get_num_threads()) + counter.get_total_flops() / product


@contextmanager
def _counted_attention() -> Iterator[None]:
    """Layers of transformers as operators that the counter knows, not as the one of PyTorch's fast path."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
