"""Training runs beside one another: eager PyTorch in float32 and float64, other roundings of it, and ours.

Two criteria. A *step from the same state* is compared number by number (loss, parameters, buffers, optimizer's state);
nothing can add up there, so the bound is that of single operators. A *curve* is compared with the band of eager curves
whose parameters move by a unit in the last place after every step: dynamics amplify roundings, in ours as in those.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.fuzz.execution import Rounding
from tests.training.checking import Loop, Make
from tests.training.networks import Network

State = dict[str, torch.Tensor]
FACTOR, ULPS, DISTURBED = 4.0, 8.0, 2


def wide(batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.double() if t.is_floating_point() else t for t in batch)


def eager(network: Network, make: Make, *, exact: bool = False) -> Loop:
    """PyTorch's own loop over a copy of the network."""
    model = copy.deepcopy(network.model).train()
    return Loop(model.double() if exact else model, network.loss, make)


def loaded(runner: Any, model: dict[str, Any], optimizer: dict[str, Any]) -> None:
    """Give a runner (it has ``model`` and ``optimizer``) a state; both are left alone."""
    runner.model.load_state_dict(model)
    runner.optimizer.load_state_dict(copy.deepcopy(optimizer))


def numbers(runner: Any, loss: torch.Tensor) -> State:
    """All that a step leaves, by name."""
    found = {"loss": loss, **{f"model.{n}": t for n, t in runner.model.state_dict().items()}}
    names = {id(p): n for n, p in runner.model.named_parameters()}
    for p, state in runner.optimizer.state.items():
        found |= {f"{n} of {names[id(p)]}": t for n, t in state.items() if isinstance(t, torch.Tensor)}
    return {n: t.detach().clone() for n, t in found.items()}


# -------------------------------------------------------------------- a step from the same state


def compare_step(network: Network, make: Make, ours: Any, at: Loop, batch: tuple[torch.Tensor, ...]) -> float:
    """Take one step from the state of ``at`` in float64, eagerly, with other roundings and with ``ours``; raises
    AssertionError with what rounding does not explain. Returns the largest error over what is allowed."""
    states = copy.deepcopy((at.model.state_dict(), at.optimizer.state_dict()))
    inputs = len(batch) - 1

    def after(runner: Any, given: tuple[torch.Tensor, ...], within: Any = None, **options: int) -> State:
        loaded(runner, *states)
        with within or nullcontext():
            loss = runner(*given, **options)
        return numbers(runner, loss)

    exact = after(eager(network, make, exact=True), wide(batch), inputs=inputs)
    peer = eager(network, make)
    peers = [after(peer, batch, inputs=inputs)]
    peers += [after(peer, batch, Rounding(seed), inputs=inputs) for seed in range(DISTURBED)]
    mine = after(ours, batch)
    assert mine.keys() == exact.keys()
    shares = {n: _share(mine[n], exact[n], [p[n] for p in peers]) for n in exact}
    worst = max(shares, key=lambda n: shares[n])
    assert shares[worst] <= 1, f"{worst}: {shares[worst]:.1f} times what rounding explains"
    return shares[worst]


def _share(mine: torch.Tensor, exact: torch.Tensor, peers: list[torch.Tensor]) -> float:
    """Our error over that which is allowed."""
    assert mine.shape == exact.shape and mine.dtype == peers[0].dtype
    if not mine.is_floating_point():
        assert torch.equal(mine, exact)
        return 0.0
    assert torch.isfinite(mine).all()
    if not mine.numel():
        return 0.0
    error, *theirs = [float((t.double() - exact.double()).abs().max()) for t in (mine, *peers)]
    scale = max(float(exact.abs().max()), torch.finfo(torch.float32).tiny)
    return error / (FACTOR * max(theirs) + ULPS * torch.finfo(torch.float32).eps * scale)


# -------------------------------------------------------------------- a curve


@dataclass
class Curves:
    """Losses by step: in float64, eager (as it is, then disturbed), ours; ``ours`` is checked against the others."""

    exact: np.ndarray
    eager: list[np.ndarray]
    ours: np.ndarray
    steps: list[float] = field(default_factory=list)  # of steps from the same state: error over what is allowed

    def band(self) -> np.ndarray:
        """How far rounding may take a curve from float64 until each step."""
        apart = np.abs(np.stack(self.eager) - self.exact).max(axis=0)
        return FACTOR * np.maximum.accumulate(apart) + ULPS * np.finfo(np.float32).eps * np.abs(self.exact)

    def check(self, learning: bool = True) -> None:
        """The network learns, the band is narrow beside what it learns, and our curve is in it."""
        learned = self.exact[:_EPOCH].mean() - self.exact[-_EPOCH:].mean() if learning else self.exact[0]
        assert learned > 0.02 * self.exact[0], f"the loss went from {self.exact[0]:.4f} to {self.exact[-1]:.4f}"
        band = self.band()
        assert band.max() < 0.05 * learned, f"the band of {band.max():.1e} says nothing beside {learned:.1e}"
        share = np.abs(self.ours - self.exact) / band
        where = int(share.argmax())
        assert share[where] <= 1, f"step {where}: {share[where]:.1f} times what rounding explains"


_EPOCH = 4


def curves(
    network: Network, make: Make, ours: Callable[[nn.Module], Any], steps: int, checkpoints: Container[int] = ()
) -> Curves:
    """Train for ``steps``. ``ours`` makes a runner of a model; one is compared step by step at ``checkpoints``."""
    exact, plain = eager(network, make, exact=True), eager(network, make)
    moved = [eager(network, make) for _ in range(DISTURBED)]
    generators = [torch.Generator().manual_seed(k) for k in range(DISTURBED)]
    runner, other = (ours(copy.deepcopy(network.model).train()) for _ in range(2))
    losses: list[list[torch.Tensor]] = []
    shares = []
    for k in range(steps):
        batch = network.batches[k % len(network.batches)]
        inputs = len(batch) - 1
        if k in checkpoints:
            shares.append(compare_step(network, make, other, plain, batch))
        row = [exact(*wide(batch), inputs=inputs), runner(*batch), plain(*batch, inputs=inputs)]
        for loop, generator in zip(moved, generators):
            row.append(loop(*batch, inputs=inputs))
            _move(loop.model, generator)
        losses.append([loss.double() for loss in row])
    reference, mine, *peers = torch.tensor(losses, dtype=torch.float64).T.numpy()
    return Curves(reference, list(peers), mine, shares)


@torch.no_grad()
def _move(model: nn.Module, generator: torch.Generator) -> None:
    """Each number of each parameter by a unit in its last place up, down, or not."""
    for p in model.parameters():
        steps = torch.randint(-1, 2, p.shape, generator=generator)
        p.mul_(1 + steps * torch.finfo(p.dtype).eps)
