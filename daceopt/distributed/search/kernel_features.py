"""What an estimator sees of a kernel of several operators (DisCo, section 4.3.1)."""

from __future__ import annotations

from collections.abc import Collection
from math import log2
from typing import NamedTuple

import numpy as np

from daceopt.cost.rates import Rates
from daceopt.distributed.search.operator_costs import FUNCTIONS, OperatorCost, OperatorReach, edges_among
from daceopt.ir.fusion.micro_graph import TYPES

NODE_FEATURES = len(TYPES) + 7 + len(FUNCTIONS)
KERNEL_FEATURES = 5


class KernelFeatures(NamedTuple):
    """``nodes``: a row per operator (type, time alone, bytes read, written, operations, bytes that come from and go to
    other kernels, extent of the last loop, evaluations of functions); ``adjacency``: which read from which, both ways,
    and each itself; ``kernel``: of the whole; ``roofline``: seconds that its bytes and operations take. Numbers are
    logarithms."""

    nodes: np.ndarray  # float32 [operators, NODE_FEATURES]
    adjacency: np.ndarray  # bool [operators, operators]
    kernel: np.ndarray  # float32 [KERNEL_FEATURES]
    roofline: float


def features_of(
    reach: OperatorReach, members: Collection[int], exported: Collection[int], machine: Rates
) -> KernelFeatures:
    """Of the kernel of ``members``, of which others read the results of ``exported``."""
    ordered = sorted(members)
    index = {k: row for row, k in enumerate(ordered)}
    adjacency = np.eye(len(ordered), dtype=bool)
    for producer, reader in edges_among(reach.operators, ordered):
        adjacency[index[producer], index[reader]] = adjacency[index[reader], index[producer]] = True
    inside = {a for k in ordered for a in reach.operators[k].writes}
    leaving = reach.leaving(members, exported)
    rows = [_row(reach.operators[k], inside, leaving[k]) for k in ordered]
    whole = reach.cost(members, exported)
    roofline = whole.seconds(machine)
    kernel = [_log(roofline * 1e9), _log(whole.read), _log(whole.written), _log(whole.operations), _log(len(ordered))]
    return KernelFeatures(np.array(rows, dtype=np.float32), adjacency, np.array(kernel, dtype=np.float32), roofline)


def _row(operator: OperatorCost, inside: Collection[str], leaving: float) -> list[float]:
    kinds = [float(operator.kind == kind) for kind in TYPES]
    outside = sum(b for a, b in operator.reads.items() if a not in inside)
    numbers = (
        operator.seconds * 1e9,
        sum(operator.reads.values()),
        sum(operator.writes.values()),
        operator.operations,
        outside,
        leaving,
        operator.inner,
        *operator.functions,
    )
    return [*kinds, *map(_log, numbers)]


def _log(value: float) -> float:
    """From about -3 to 3 for bytes, operations and nanoseconds: a network sees a factor of two well."""
    return log2(1 + value) / 4 - 3
