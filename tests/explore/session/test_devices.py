"""Reports and sessions on modules for CUDA: kernels are emulated, and on a device where there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import daceopt
from daceopt import pipeline
from daceopt.capture.torch.importing import load
from daceopt.codegen.cuda.toolchain import nvcc
from daceopt.cost.machine import Machine
from daceopt.errors import DaceoptError
from daceopt.explore import Session
from daceopt.explore.report import roofline_plot
from daceopt.explore.report.html import to_document
from daceopt.explore.report.report import Report
from daceopt.explore.report.tables import KernelRow
from daceopt.explore.report.text import limits, to_text
from daceopt.explore.session.version_report import finish
from daceopt.modules import description
from tests.modules.devices import on_device
from tests.modules.test_cuda import _of, _perceptron, _traced

PLACED = "device-placement{target='cuda'}"


class Net(nn.Module):
    """That of the README, smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        h = h * torch.tanh(softplus(h)) * torch.sigmoid(h)
        return x + self.down(h) * 0.5 * 0.1


def _check_report(report: Report, mode: str) -> None:
    """Each kernel has its time, bytes and code, and nothing was left out."""
    assert not report.reason and not report.fallbacks and report.mode == mode and report.recipe == "gpu"
    assert report.of("forward") and bool(report.of("backward")) == (mode == "training")
    for kernel in report.kernels:
        assert kernel.seconds and kernel.seconds > 0 and kernel.bytes > 0 and kernel.limit > 0 and kernel.share
        assert kernel.label and kernel.source and kernel.library in ("", "torch_device")
    assert not [note for note in report.notes if "no times" in note or "cost model" in note]
    chosen = report.kernel("tanh")
    assert "warp for" in chosen.schedule and "__global__" in chosen.source
    assert report.peak > 0 and report.memory and (report.saved > 0) == (mode == "training")
    assert "these live on cuda" not in str(report) and report.html()


@pytest.mark.parametrize("backward", [False, True])
def test_a_report_has_a_time_for_each_kernel(backward: bool, emulated: None) -> None:
    report = daceopt.explain(Net(), torch.randn(4, 8), recipe="gpu", backward=backward)
    _check_report(report, "training" if backward else "inference")


@pytest.mark.slow
def test_loops_and_what_a_call_changes(emulated: None) -> None:
    """A loop counts as one node; running statistics stay what they are."""
    report = daceopt.explain(nn.LSTM(3, 4), torch.randn(3, 2, 3), recipe="gpu")
    assert not report.reason and all(k.seconds for k in report.kernels)
    norm = nn.BatchNorm1d(8)
    report = daceopt.explain(norm, torch.randn(4, 8), recipe="gpu")
    assert not report.reason and all(k.seconds for k in report.kernels)
    assert norm.num_batches_tracked == 0 and norm.running_mean is not None and not norm.running_mean.any()


def test_a_profile_is_not_there_where_a_kernel_fails(emulated: None) -> None:
    report = daceopt.explain(nn.Embedding(5, 4), torch.tensor([1, 7]), recipe="gpu", backward=False)
    assert report.kernels and all(k.seconds is None for k in report.kernels)
    assert [n for n in report.notes if n.startswith("no times: ") and "an index is out of range" in n]


# ---------------------------------------------------------------- sessions


def _walk(session: Session, again: Session, folder: Path) -> None:
    """The README's session, of which every step works."""
    sites = session.sites("epilogue-fusion", "map-fusion")
    fused = session.branch("fused").apply(sites[0]).apply("vectorization")
    compared = fused.compare(session, seconds=0.02)
    assert compared.seconds is not None and min(compared.seconds) > 0
    assert compared.difference is not None and compared.difference[0] < 1e-5
    assert [n for n in compared.notes if "is not lowered or scheduled yet: finished by" in n and "warp-tiling" in n]
    alone = fused.measure(fused.report().kernels[-1].label, seconds=0.02)
    assert alone.seconds > 0 and "finished by" in alone.how and "__global__" in alone.row.source
    file = fused.undo().redo().save(folder / "my_path.py")
    assert again.apply(file).path == fused.path
    whole = fused.report(measure=True)
    assert all(k.seconds for k in whole.kernels) and fused.html(measure=True)


def test_a_session(emulated: None, tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    session = daceopt.explore(Net(), x, backward=False).apply(PLACED).apply("lower-operators")
    _walk(session, daceopt.explore(Net(), x, backward=False), tmp_path)


def test_what_is_scheduled_runs_as_it_is(emulated: None) -> None:
    session = daceopt.explore(Net(), torch.randn(4, 8)).apply("gpu")
    assert finish(session.program)[1] == []
    compared = session.compare(session.branch("other"), seconds=0.02)
    assert not [n for n in compared.notes if "finished" in n]
    (note,) = [n for n in session.compare(seconds=0.02).notes if "finished" in n]
    assert note.startswith("captured is not lowered yet"), "that one is for the host"
    alone = session.measure(session.report().of("forward")[-1].label, seconds=0.02)
    assert "finished" not in alone.how and alone.seconds > 0


def test_a_kernel_alone_may_become_several(emulated: None) -> None:
    """Blocks do not wait for each other, so a long sum takes two."""

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(0)

    session = daceopt.explore(Sums(), torch.randn(4096, 4), backward=False).apply(PLACED).apply("lower-operators")
    alone = session.measure("sum", seconds=0.02)
    assert "as 2 kernels" in alone.how and alone.row.source.count("__global__") == 2


def test_numerics_are_checked_in_a_session(emulated: None) -> None:
    daceopt.explore(Net(), torch.randn(4, 8), verify="numerics").apply("gpu")


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
def test_arrays_of_the_host_are_no_place_for_kernels_of_a_device() -> None:
    session = daceopt.explore(Net(), torch.randn(4, 8), backward=False).apply("gpu")
    with pytest.raises(DaceoptError, match="the inputs of a program for cuda are on cpu"):
        session.report(measure=True)


# ---------------------------------------------------------------- what is said of a device


def test_a_device_has_no_cores() -> None:
    device = Machine(
        "NVIDIA", 0, 0, 50 << 20, 0, ((6 << 20, 8e12), (400 << 20, 3e12)), 4e14, ((2, 7e14), (8, 6e13)), "TF32"
    )
    said = limits(device)
    assert said == (
        "NVIDIA: memory 3 TB/s, L2 cache 8 TB/s, 400 Tflop/s in TF32, 700 Tflop/s in bfloat16, 60 Tflop/s in float64"
    )
    row = KernelRow("forward", "k", "y", "", 10**6, 10**9, device.seconds(10**6, 10**9, 2), 1e-5)
    report = Report("model", kernels=[row], machine=device)
    assert said in to_text(report) and "Limits of this device: NVIDIA" in to_document(report)
    assert " core" not in to_text(report)
    plot = "".join(roofline_plot.section(report))
    assert plot.count('class="roof memory"') == 3 and "700 Tflop/s in bfloat16" in plot
    host = replace(device, cores=2, rates=(), factors="float32")
    assert limits(host) == "NVIDIA, 2 cores: memory 3 TB/s, caches 8 TB/s, 400 Tflop/s"


@pytest.mark.slow
@pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")
def test_nvcc_builds_programs_that_can_be_timed() -> None:
    traced = _traced(_perceptron(), lambda: [_of("cuda", 9, 20)])
    pair = pipeline.compile_graph(description.identity(traced), lambda target: load(traced, target), recipe="gpu")
    assert pair.graphs.forward.options.target == "cuda"
    assert pair.forward.manifest.device == "cuda" and pair.forward._functions.run_timed


# ---------------------------------------------------------------- a device


@on_device
@pytest.mark.parametrize("backward", [False, True])
def test_a_report_on_a_device(backward: bool) -> None:
    x, net = torch.randn(32, 8).to("cuda"), Net().to("cuda")
    before = torch.cuda.get_rng_state()
    report = daceopt.explain(net, x, backward=backward)
    _check_report(report, "training" if backward else "inference")
    assert report.machine is not None and report.machine.is_device
    assert report.machine.name == torch.cuda.get_device_name() and report.machine.factors == "float32"
    assert sum(k.seconds or 0.0 for k in report.kernels) < 1e-2, "the host's time counts"
    assert torch.equal(torch.cuda.get_rng_state(), before) and net.up.weight.grad is None


@on_device
def test_a_session_on_a_device(tmp_path: Path) -> None:
    x = torch.randn(32, 8).to("cuda")
    sessions = [daceopt.explore(Net().to("cuda"), x, backward=False) for _ in range(2)]
    _walk(sessions[0].apply("lower-operators"), sessions[1], tmp_path)
    whole = daceopt.explore(Net().to("cuda"), x).apply("auto")
    assert whole.at.title == "recipe gpu" and whole.compare(seconds=0.05).seconds is not None
    assert finish(whole.program)[1] == []


@on_device
def test_times_of_large_kernels_are_those_of_the_device() -> None:
    """A copy of many bytes beside the memory that the device has: no faster than that allows, and not far from it."""
    report = daceopt.explain(nn.Tanh(), torch.randn(1 << 26, device="cuda"), backward=False)
    (kernel,) = report.kernels
    assert kernel.share is not None and 0.3 < kernel.share < 1.2


@on_device
def test_a_profile_of_attention_and_images() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0).cuda()
    images = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).cuda()
    for module, x in ((layer, torch.randn(4, 32, 64)), (images, torch.randn(4, 3, 32, 32))):
        report = daceopt.explain(module, x.cuda())
        assert not report.reason and all(k.seconds for k in report.kernels), report
