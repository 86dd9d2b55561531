from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from daceopt.cost.limits import Limits
from daceopt.cost.rates import typical
from daceopt.distributed.search.estimator_training import errors, load, train
from daceopt.distributed.search.kernel_estimator import SHIPPED, KernelEstimator
from daceopt.distributed.search.kernel_features import features_of
from daceopt.distributed.search.kernel_samples import KernelSample, random_graph
from daceopt.distributed.search.operator_costs import OperatorReach, operator_costs
from daceopt.errors import DaceoptError

MACHINE = typical(Limits(1))


def reach() -> OperatorReach:
    return OperatorReach(operator_costs(random_graph(3, 6), MACHINE))


def samples() -> list[KernelSample]:
    """Kernels of neighbours, whose time is what only their operators tell: those that reduce take four times longer."""
    found, made = reach(), []
    for k in range(len(found.operators)):
        for members in (frozenset((k,)), frozenset((k, k + 1))):
            if max(members) < len(found.operators):
                features = features_of(found, members, members, MACHINE)
                reduces = any(found.operators[m].kind == "reduction" for m in members)
                made.append(KernelSample(features, features.roofline * (4 if reduces else 1)))
    return made


def test_a_kernel_beside_a_larger_one_is_estimated_as_alone() -> None:
    kernels = [s.features for s in samples()]
    model = KernelEstimator().eval()
    together = model.seconds(kernels)
    alone = [model.seconds([k])[0] for k in kernels]
    np.testing.assert_allclose(together, alone, rtol=1e-4)


def test_the_order_of_operators_says_nothing() -> None:
    kernel = max((s.features for s in samples()), key=lambda f: len(f.nodes))
    order = np.arange(len(kernel.nodes))[::-1].copy()
    turned = kernel._replace(nodes=kernel.nodes[order], adjacency=kernel.adjacency[np.ix_(order, order)])
    first, second = KernelEstimator().eval().seconds([kernel, turned])
    assert first == pytest.approx(second, rel=1e-5)


def test_it_learns_what_the_roofline_does_not_know() -> None:
    made = samples()
    model = train(made, epochs=150)
    roofline = [abs(s.features.roofline - s.seconds) / s.seconds for s in made]
    assert np.mean(errors(made, model)) < 0.5 * np.mean(roofline)


def test_training_is_deterministic_and_leaves_its_start_alone() -> None:
    made, start = samples()[:8], KernelEstimator()
    before = {n: t.clone() for n, t in start.state_dict().items()}
    first, second = (train(made, 2, start) for _ in range(2))
    assert first.to_bytes() == second.to_bytes()
    assert all(torch.equal(t, before[n]) for n, t in start.state_dict().items())


def test_files_hold_all_of_it(tmp_path: Path) -> None:
    model, kernels = KernelEstimator().eval(), [s.features for s in samples()]
    (tmp_path / "state.npz").write_bytes(model.to_bytes())
    assert KernelEstimator.load(tmp_path / "state.npz").seconds(kernels) == model.seconds(kernels)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    state = {n: t.numpy() for n, t in KernelEstimator().state_dict().items()}
    pickled, stream = np.array([print], dtype=object), io.BytesIO()
    np.savez(stream, **{**state, "layers.0.source": pickled})
    smaller = io.BytesIO()
    np.savez(smaller, **{n: a[:1] for n, a in state.items()})
    infinite = io.BytesIO()
    np.savez(infinite, **{n: a * np.float32("inf") for n, a in state.items()})
    whole = KernelEstimator().to_bytes()
    for raw in (b"", b"no archive", whole[:-100], stream.getvalue(), smaller.getvalue(), infinite.getvalue()):
        path.write_bytes(raw)
        with pytest.raises(DaceoptError, match="state.npz has"):
            KernelEstimator.load(path)
    with pytest.raises(DaceoptError, match="has no estimator"):
        KernelEstimator.load(tmp_path / "absent.npz")


def test_what_is_shipped_is_small_and_better_than_nothing() -> None:
    assert SHIPPED.stat().st_size < 300_000
    found = load(MACHINE).seconds([s.features for s in samples()])
    assert all(0 < t < 1 for t in found)


def test_a_kernel_reads_once_what_its_operators_share() -> None:
    found = reach()
    shared = next((a, r) for a, r in sorted(found.readers.items()) if len(r) > 1 and a not in found.writer)
    members = sorted(shared[1])[:2]
    alone = [found.cost([k], [k]) for k in members]
    both = found.cost(members, members)
    assert both.read < sum(c.read for c in alone)
    assert both.operations == sum(c.operations for c in alone)


def test_what_passes_inside_is_not_written() -> None:
    found = reach()
    array, producer = next(
        (a, k)
        for a, k in found.writer.items()
        if len(found.readers.get(a, ())) == 1 and a not in found.operators[k].kept
    )
    (reader,) = found.readers[array]
    both = found.cost([producer, reader], [producer, reader])
    alone = [found.cost([k], [k]) for k in (producer, reader)]
    size = found.operators[producer].writes[array]
    assert both.written == sum(c.written for c in alone) - size
    assert both.read <= sum(c.read for c in alone) - size
