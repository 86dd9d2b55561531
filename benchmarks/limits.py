"""What a machine cannot do without: the bytes and operations that a module must spend, in seconds at measured rates."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from benchmarks.checking import results
from benchmarks.contenders import Inputs
from daceopt.cost.rates import rates


def byte_limit(model: nn.Module, inputs: Inputs, training: bool) -> float:
    """Seconds in which memory delivers what a kernel that keeps everything in registers has to move: its inputs and
    result; backward again the inputs, the result's gradient and the gradients."""
    results_of = results(copy.deepcopy(model), inputs, training)()
    read = _bytes([*inputs, *model.parameters()])
    moved = read + _bytes(results_of[:1])
    if training:
        moved += read + _bytes(results_of)
    return rates().seconds(moved, 0.0, threads=torch.get_num_threads())


def product_limit(model: nn.Module, inputs: Inputs, training: bool) -> float:
    """Seconds of a network's products and convolutions at the rate of the best library's, plus those of reading inputs
    and parameters and writing results (and gradients) once. PyTorch's own counter says how many those are."""
    run = results(copy.deepcopy(model), inputs, training)
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_gradients}
    )
    with counter, _counted_layers():
        outputs = run()
    moved = _bytes([*inputs, *model.parameters(), *outputs])
    machine = rates()
    product = max([machine.product, *(rate for _, rate in machine.products)])
    return machine.seconds(moved, 0.0, threads=torch.get_num_threads()) + counter.get_total_flops() / product


def _convolution_gradients(
    gradient: Sequence[int], x: Sequence[int], weight: Sequence[int], *rest: Any, out_shape: object = None
) -> int:
    """Operations of a convolution's gradients: as many as forward for each of the input's and the weight's.

    PyTorch's own formula takes the weight's gradient of a convolution in groups for a dense one.
    """
    *_, transposed, _output_padding, _groups, is_wanted = rest
    return sum(is_wanted[:2]) * conv_flop_count([*x], [*weight], [*gradient], transposed=transposed)


@contextmanager
def _counted_layers() -> Iterator[None]:
    """Transformers' and recurrent layers as operators that the counter knows, not as one of PyTorch's fast paths."""
    attention, (library, *_) = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.set_flags(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(attention)
        torch.backends.mkldnn.set_flags(library)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
