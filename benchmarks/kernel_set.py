"""Twenty-four kernels that move bytes more than they compute, at sizes that leave the caches: functions of tensors.

JAX has them a second time, by the same names (``peers/jax_kernels.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Kernel:
    """``function`` of the tensors that ``inputs`` makes; gradients are those of all that are floats."""

    function: Callable[..., torch.Tensor]
    inputs: Callable[[], Tensors]


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


def _randn(*shapes: tuple[int, ...]) -> Callable[[], Tensors]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def _rows_and(*others: tuple[int, ...]) -> Callable[[], Tensors]:
    return _randn((4096, 1024), *others)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((x * 0.125).masked_fill(mask, -torch.inf), -1)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def index_add(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros(8192, x.shape[1], dtype=x.dtype).index_add(0, rows, x)


def _scores() -> Tensors:
    return torch.randn(8, 8, 512, 512), torch.ones(512, 512, dtype=torch.bool).triu(1)


def _integers(high: int, count: int, *floats: tuple[int, ...]) -> Callable[[], Tensors]:
    return lambda: (*(torch.randn(shape) for shape in floats), torch.randint(0, high, (count,)))


KERNELS: dict[str, Kernel] = {
    "mish": Kernel(F.mish, _randn((8, 32, 224, 224))),
    "gelu": Kernel(F.gelu, _randn((8, 512, 4096))),
    "swiglu": Kernel(lambda a, b: F.silu(a) * b, _randn((2048, 4096), (2048, 4096))),
    "bias-gelu-residual": Kernel(lambda x, b, r: F.gelu(x + b) + r, _rows_and((1024,), (4096, 1024))),
    "layer-norm": Kernel(lambda x, w, b: F.layer_norm(x, w.shape, w, b), _rows_and((1024,), (1024,))),
    "add-layer-norm": Kernel(
        lambda x, y, w, b: F.layer_norm(x + y, w.shape, w, b), _rows_and((4096, 1024), (1024,), (1024,))
    ),
    "rms-norm": Kernel(rms_norm, _rows_and((1024,))),
    "group-norm": Kernel(lambda x, w, b: F.group_norm(x, 32, w, b), _randn((16, 128, 56, 56), (128,), (128,))),
    "batch-norm-relu": Kernel(batch_norm_relu, _randn((32, 64, 56, 56), (64,), (64,))),
    "instance-norm": Kernel(F.instance_norm, _randn((16, 64, 64, 64))),
    "softmax": Kernel(lambda x: torch.softmax(x, -1), _randn((8, 16, 512, 512))),
    "masked-softmax": Kernel(masked_softmax, _scores),
    "log-softmax": Kernel(lambda x: torch.log_softmax(x, -1), _randn((1024, 8192))),
    "cross-entropy": Kernel(F.cross_entropy, _integers(8192, 2048, (2048, 8192))),
    "logsumexp": Kernel(lambda x: torch.logsumexp(x, -1), _randn((8192, 2048))),
    "sum-rows": Kernel(lambda x: x.sum(-1), _randn((8192, 4096))),
    "sum-columns": Kernel(lambda x: x.sum(0), _randn((8192, 4096))),
    "variance": Kernel(lambda x: x.var(1), _randn((64, 256, 1024))),
    "l2-normalize": Kernel(lambda x: F.normalize(x, dim=-1), _randn((65536, 256))),
    "transpose": Kernel(lambda x: x.permute(0, 2, 3, 1).contiguous(), _randn((16, 256, 56, 56))),
    "rotary": Kernel(rotary, _randn((8, 16, 512, 64), (512, 64), (512, 64))),
    "embedding": Kernel(lambda w, rows: F.embedding(rows, w), _integers(20_000, 32_768, (20_000, 256))),
    "index-add": Kernel(index_add, _integers(8192, 65_536, (65_536, 128))),
    "max-pool": Kernel(lambda x: F.max_pool2d(x, 3, 2, 1), _randn((16, 64, 112, 112))),
}
