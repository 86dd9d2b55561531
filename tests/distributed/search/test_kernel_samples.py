from __future__ import annotations

import numpy as np
import torch

from daceopt.cost.limits import Limits
from daceopt.cost.rates import typical
from daceopt.distributed.search.kernel_samples import random_graph, samples
from daceopt.ir.interpreter.interpret import interpret


def test_random_graphs_are_the_same_for_a_seed_and_run() -> None:
    one, same, other = (random_graph(seed, 3) for seed in (1, 1, 2))
    assert [str(n) for n in one.nodes()] == [str(n) for n in same.nodes()]
    assert [str(n) for n in one.nodes()] != [str(n) for n in other.nodes()]
    one.validate()
    values = {n: np.random.default_rng(0).normal(size=one.shape(n)) for n in one.inputs}
    assert all(np.isfinite(x).all() for x in interpret(one, values).values())


def test_kernels_are_timed() -> None:
    before = torch.get_num_threads()
    found = samples(7, typical(Limits(1)), chains=2)
    assert torch.get_num_threads() == before
    assert any(len(s.features.nodes) > 1 for s in found)
    assert all(1e-8 < s.seconds < 1 for s in found)
    assert all(s.features.roofline > 0 for s in found)
