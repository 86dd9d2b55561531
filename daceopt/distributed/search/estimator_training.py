"""Trains the estimator of kernels, from nothing or from the state that is shipped, on kernels timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from daceopt import system
from daceopt.cost.rates import Rates
from daceopt.distributed.search.kernel_estimator import SHIPPED, KernelEstimator, batch
from daceopt.distributed.search.kernel_samples import KernelSample, stream
from daceopt.errors import DaceoptError
from daceopt.progress import phase
from daceopt.store.cache import default_cache, key

_KIND, _FILE, _VERSION = "estimator", "kernel_estimator.npz", 1
_BATCH = 128
_TUNED = 20  # epochs of fine tuning


def train(
    samples: Sequence[KernelSample], epochs: int, start: KernelEstimator | None = None, rate: float = 2e-3
) -> KernelEstimator:
    """An estimator that knows ``samples``; ``start`` is left as it is.

    The loss is the error of the logarithm, by Huber: kernels of a microsecond count as much as those of a millisecond,
    and single ones that somebody disturbed do not decide. (Equation 3 of the paper is the logarithm of a squared error,
    which has no lower bound.) Deterministic for the same samples.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = KernelEstimator()
        if start is not None:
            model.load_state_dict(start.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), rate, weight_decay=1e-5)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        targets = torch.tensor([s.seconds / s.features.roofline for s in samples]).log()
        for _ in range(epochs):
            for chosen in torch.randperm(len(samples)).split(_BATCH):
                estimates = model(*batch([samples[k].features for k in chosen.tolist()]))
                loss = nn.functional.huber_loss(estimates, targets[chosen], delta=0.2)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
    return model.eval()


def errors(samples: Iterable[KernelSample], model: KernelEstimator) -> list[float]:
    """|predicted - measured| / measured of each sample, as in figure 9 of the paper."""
    samples = list(samples)
    estimates = model.seconds([s.features for s in samples])
    return [abs(t - s.seconds) / s.seconds for t, s in zip(estimates, samples, strict=True)]


def fine_tuned(machine: Rates, seconds: float) -> KernelEstimator:
    """The shipped estimator after some ``seconds`` of kernels of this machine; kept in the cache, for machines of as
    many cores as ``machine`` has."""
    store, identity = default_cache(), _identity(machine)
    deadline, measured = time.monotonic() + seconds, []
    with phase("timing kernels"):
        for more in stream(machine):
            measured += more
            if time.monotonic() >= deadline:
                break
    model = train(measured, _TUNED, load(machine), rate=5e-4)
    store.discard(_KIND, identity)
    store.put(_KIND, identity, lambda folder: _write(folder, model))
    return model


def load(machine: Rates) -> KernelEstimator:
    """The one tuned on this machine, or the one that is shipped."""
    entry = default_cache().get(_KIND, _identity(machine))
    if entry is None:
        return KernelEstimator.load(SHIPPED)
    try:
        return KernelEstimator.load(entry / _FILE)
    except DaceoptError:
        return KernelEstimator.load(SHIPPED)


def _identity(machine: Rates) -> str:
    return key(_KIND, _VERSION, system.fingerprint(), machine.cores)


def _write(folder: Path, model: KernelEstimator) -> None:
    (folder / _FILE).write_bytes(model.to_bytes())
