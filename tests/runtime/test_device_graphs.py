"""Graphs of calls: when they are recorded and launched, and what a key has to tell apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from daceopt.runtime import device_graphs
from daceopt.runtime.device_graphs import GRAPHS, CallGraphs, graphs_for
from daceopt.torch_internals.cuda_state import library_modes
from tests.runtime.recorded import Replayed

_HOST = torch.device("cpu")


class _Log:
    """Records graphs and remembers them."""

    def __init__(self) -> None:
        self.graphs: list[Replayed] = []
        self.starts = 0

    def record(self, start: Callable[[], None]) -> Replayed:
        self.graphs.append(Replayed(start))
        return self.graphs[-1]

    def start(self, seeds: torch.Tensor | None) -> None:
        self.starts += 1


def _calls(graphs: CallGraphs, log: _Log, keys: str) -> str:
    """For each of the calls with these keys, one after the other: l where a graph was launched, else s."""
    return "".join("l" if graphs.launch(key, log.start, None) else "s" for key in keys)


def test_a_graph_is_recorded_when_addresses_come_back_again() -> None:
    log = _Log()
    graphs = CallGraphs(_HOST, log.record)
    assert _calls(graphs, log, "aaaaa") == "sslll"
    assert (graphs.recorded, graphs.launched, log.starts) == (1, 3, 3)


def test_keys_are_counted_by_themselves() -> None:
    log = _Log()
    assert _calls(CallGraphs(_HOST, log.record), log, "ababababa") == "sssslllll"
    assert len(log.graphs) == 2


def test_addresses_that_never_come_back_are_forgotten() -> None:
    log = _Log()
    graphs = CallGraphs(_HOST, log.record)
    for k in range(500):
        assert not graphs.launch(k, log.start, None)
    assert len(graphs._calls) < 100 and not log.graphs


def test_graphs_that_are_not_used_are_recorded_no_more() -> None:
    log = _Log()
    graphs = CallGraphs(_HOST, log.record)
    for k in range(20):
        for _ in range(3):
            graphs.launch(k, log.start, None)
    assert graphs.recorded == 4
    for _ in range(40):  # uses of one pay for others
        graphs.launch(3, log.start, None)
    assert [graphs.launch(20, log.start, None) for _ in range(3)] == [False, False, True]


def test_the_graph_that_has_waited_longest_goes() -> None:
    log = _Log()
    graphs = CallGraphs(_HOST, log.record)
    for k in range(GRAPHS):
        assert [graphs.launch(k, log.start, None) for _ in range(12)] == [False, False, *[True] * 10]
    assert graphs.launch(0, log.start, None)
    assert [graphs.launch(-1, log.start, None) for _ in range(3)] == [False, False, True]
    assert [g.released for g in log.graphs] == [0, 1, *[0] * (GRAPHS - 1)]
    assert graphs.launch(0, log.start, None) and not graphs.launch(1, log.start, None)


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), device_graphs.DaceoptError("failed")])
def test_what_cannot_be_recorded_is_started(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def record(start: Callable[[], None]) -> Replayed:
        raise error

    graphs, log = CallGraphs(_HOST, record), _Log()
    assert _calls(graphs, log, "aaaaa") == "sssss"
    assert [str(error) in r.getMessage() for r in caplog.records] == [True]


def test_a_graph_reads_the_seed_of_its_call() -> None:
    log, seeds = _Log(), []
    graphs = CallGraphs(_HOST, log.record)

    def start(given: torch.Tensor | None) -> None:
        assert given is not None
        seeds.append(int(given))

    for seed in range(6):  # recorded in inference mode, launched outside of it as well
        with torch.inference_mode(seed < 4):
            if not graphs.launch("a", start, seed):
                start(torch.tensor([seed]))
    assert seeds == [0, 1, 2, 3, 4, 5] and graphs.launched == 4


def test_programs_of_the_host_and_of_few_kernels_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    place = torch.device("cuda", 0)
    assert graphs_for(torch.device("cpu"), 40) is None and graphs_for(place, 1) is None
    assert graphs_for(place, 40) is not None
    monkeypatch.setenv("DACEOPT_CUDA_GRAPHS", "0")
    assert graphs_for(place, 40) is None


@pytest.mark.parametrize("switch", [{"allow_tf32": False}, {"benchmark": True}, {"deterministic": True}])
def test_a_switch_of_convolutions_is_another_call(switch: dict[str, bool]) -> None:
    with torch.backends.cudnn.flags(enabled=True):
        before = library_modes()
    with torch.backends.cudnn.flags(enabled=True, **switch):
        assert library_modes() != before


def test_a_switch_of_products_is_another_call() -> None:
    before, was = library_modes(), torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = not was
        assert library_modes() != before
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was


def test_the_choice_of_attention_is_another_call() -> None:
    before = library_modes()
    with sdpa_kernel(SDPBackend.MATH):
        assert library_modes() != before
    assert library_modes() == before
    torch.use_deterministic_algorithms(True)
    try:
        assert library_modes() != before
    finally:
        torch.use_deterministic_algorithms(False)
