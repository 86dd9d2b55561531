"""Seeds for compiled programs, drawn from PyTorch's generator, and the replay of what a seed generates."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch

from daceopt.ir.scalar import philox

if TYPE_CHECKING:
    import numpy as np


def draw_seed() -> int:
    """A signed 64-bit seed from PyTorch's default CPU generator, so that `torch.manual_seed` governs compiled
    programs too.
    """
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())


def uniform(seed: int, node: int, elements: int | np.ndarray) -> np.ndarray:
    """The float32 numbers in [0, 1) that node `node` of a program draws under `seed`.

    `elements` is a count (the first elements) or an int64 array of element numbers; the result has that array's shape.
    """
    import numpy as np

    index = np.arange(elements, dtype=np.int64) if isinstance(elements, int) else elements
    return philox.uniform(seed, node, index)


def own_random_numbers(values: Iterable[object]) -> AbstractContextManager[None]:
    """Within the block random numbers are drawn that nobody misses behind it: of the host, and of the CUDA devices on
    which tensors among ``values`` are."""
    devices = {x.device.index for x in values if isinstance(x, torch.Tensor) and x.device.type == "cuda"}
    return torch.random.fork_rng(devices=sorted(devices))
