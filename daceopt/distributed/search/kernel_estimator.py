"""How long a kernel of several operators takes: a graph attention network (DisCo, section 4.3)."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from daceopt.distributed.search.kernel_features import KERNEL_FEATURES, NODE_FEATURES, KernelFeatures, features_of
from daceopt.errors import DaceoptError

if TYPE_CHECKING:
    from daceopt.cost.rates import Rates
    from daceopt.distributed.search.operator_costs import OperatorReach
    from daceopt.distributed.search.program_operators import Estimate
    from daceopt.distributed.search.training_graph import KernelGroup

SHIPPED = Path(__file__).with_name("kernel_estimator.npz")
"""Trained on the reference machine, on one core."""

_HEADS, _WIDTH, _LAYERS, _DENSE = 4, 12, 3, 64


class _Attention(nn.Module):
    """Multi-head attention over neighbours, an operator itself among them (Velickovic et al., 2018; equation 1)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, _HEADS * _WIDTH)
        self.source = nn.Parameter(0.1 * torch.randn(_HEADS, _WIDTH))
        self.target = nn.Parameter(0.1 * torch.randn(_HEADS, _WIDTH))

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """``x`` [batch, operators, size], ``adjacency`` [batch, operators, operators]."""
        h = self.project(x).unflatten(-1, (_HEADS, _WIDTH))
        scores = (h * self.target).sum(-1).unsqueeze(2) + (h * self.source).sum(-1).unsqueeze(1)
        scores = nn.functional.leaky_relu(scores, 0.2).masked_fill(~adjacency.unsqueeze(-1), float("-inf"))
        mixed = torch.einsum("bijh,bjhw->bihw", scores.softmax(2), h)
        return nn.functional.elu(mixed.flatten(2))


class KernelEstimator(nn.Module):
    """Predicts by how much a kernel's time differs from its roofline, as the logarithm of their quotient.

    Layers of attention over the operators, their sum (equation 2), and dense layers on it and on what is known of the
    whole kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = [NODE_FEATURES] + [_HEADS * _WIDTH] * (_LAYERS - 1)
        self.layers = nn.ModuleList(_Attention(size) for size in sizes)
        self.whole = nn.Linear(_HEADS * _WIDTH + NODE_FEATURES, _DENSE)
        self.dense = nn.Sequential(
            nn.Linear(_DENSE + KERNEL_FEATURES, _DENSE), nn.ReLU(), nn.Linear(_DENSE, _DENSE), nn.ReLU()
        )
        self.out = nn.Linear(_DENSE, 1)

    def forward(
        self, nodes: torch.Tensor, adjacency: torch.Tensor, present: torch.Tensor, kernel: torch.Tensor
    ) -> torch.Tensor:
        """[batch] logarithms. ``present`` [batch, operators]: which rows are operators; the others see themselves."""
        x = nodes
        for layer in self.layers:
            x = layer(x, adjacency)
        summed = (torch.cat([x, nodes], -1) * present.unsqueeze(-1)).sum(1)
        embedded = nn.functional.relu(self.whole(summed))
        return self.out(self.dense(torch.cat([embedded, kernel], -1))).squeeze(-1)

    def seconds(self, kernels: Sequence[KernelFeatures]) -> list[float]:
        """Of each kernel."""
        with torch.inference_mode():
            logs = self(*batch(kernels)).double().clamp(-5, 8).exp().tolist()
        return [k.roofline * factor for k, factor in zip(kernels, logs, strict=True)]

    def estimate(self, machine: Rates) -> Estimate:
        """What a search asks."""

        def seconds(reach: OperatorReach, group: KernelGroup) -> float:
            return self.seconds([features_of(reach, group.members, group.exported, machine)])[0]

        return seconds

    # ---------------------------------------------------------------- to and from files

    def to_bytes(self) -> bytes:
        """As ``.npz``."""
        stream = io.BytesIO()
        np.savez_compressed(stream, **{n: t.detach().numpy() for n, t in self.state_dict().items()})
        return stream.getvalue()

    @classmethod
    def load(cls, path: Path = SHIPPED) -> KernelEstimator:
        """Read what ``to_bytes`` made. Raises DaceoptError for anything else."""
        new = cls()
        expected = {n: tuple(t.shape) for n, t in new.state_dict().items()}
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                content = {n: file[n] for n in file.files}
        except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise DaceoptError(f"{path} has no estimator: {error}") from error
        shapes = {n: a.shape for n, a in content.items() if a.dtype == np.float32 and np.isfinite(a).all()}
        if shapes != expected:
            raise DaceoptError(f"{path} has the state of another network than this version's")
        new.load_state_dict({n: torch.from_numpy(a) for n, a in content.items()})
        return new.eval()


def batch(kernels: Sequence[KernelFeatures]) -> tuple[torch.Tensor, ...]:
    """What the network takes, padded to the largest kernel."""
    most = max(len(k.nodes) for k in kernels)
    nodes = torch.zeros(len(kernels), most, NODE_FEATURES)
    adjacency = torch.eye(most, dtype=torch.bool).repeat(len(kernels), 1, 1)
    present = torch.zeros(len(kernels), most)
    for k, kernel in enumerate(kernels):
        count = len(kernel.nodes)
        nodes[k, :count] = torch.from_numpy(kernel.nodes)
        adjacency[k, :count, :count] = torch.from_numpy(kernel.adjacency)
        present[k, :count] = 1
    return nodes, adjacency, present, torch.from_numpy(np.stack([k.kernel for k in kernels]))
