"""Buckets by a rule: what a strategy has where nobody searched one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

import torch

from daceopt.distributed.search.strategy import Bucket, Weight

FIRST, CAP = 1 << 20, 25 << 20
"""Bytes of the first bucket and of each other one: those of DistributedDataParallel. The first is small, so that
something is on its way early."""


def by_size(weights: Sequence[Weight], first: int = FIRST, cap: int = CAP) -> tuple[Bucket, ...]:
    """Parameters in the reverse of their order, which is about that in which their gradients are computed; a bucket is
    closed by the gradient that fills it, as in Li et al., PyTorch Distributed (VLDB 2020), section 3.2.3."""
    buckets: list[Bucket] = []
    open_ones: dict[str, tuple[int, list[str]]] = {}  # element type -> bytes and names of the bucket being filled
    for weight in reversed(weights):
        held, names = open_ones.pop(weight.dtype, (0, []))
        held += prod(weight.shape) * getattr(torch, weight.dtype).itemsize
        names = [*names, weight.name]
        if held >= (cap if buckets else first):
            buckets.append(Bucket(tuple(names)))
        else:
            open_ones[weight.dtype] = held, names
    return (*buckets, *(Bucket(tuple(names)) for _, names in open_ones.values()))


def alone(weights: Sequence[Weight]) -> tuple[Bucket, ...]:
    """Each gradient by itself, in the same order."""
    return tuple(Bucket((w.name,)) for w in reversed(weights))


def in_shards(buckets: Iterable[Bucket]) -> tuple[Bucket, ...]:
    """The same, each rank updating a part."""
    return tuple(replace(bucket, sharded=True) for bucket in buckets)
