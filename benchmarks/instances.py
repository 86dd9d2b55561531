"""Networks split into instances, on the simulator of the accelerator that GraphTurbo was measured on (OSDI 2023)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.harness import OURS, Budget, Result, at_least, at_most, case
from benchmarks.models.graphturbo import NETWORKS, Network
from daceopt import simulate
from daceopt.cost import machines
from daceopt.cost.simulator import Policy, Run, run
from daceopt.errors import DaceoptError
from daceopt.passes.recipe import Recipe

PAPER_GAIN, PAPER_COMPILE = 11.15, 30.0
LAYERS, SHARED, LOCAL, INSTANCES = "layer-wise", "1 in LLB", "2 in L1", "3 instances"


@case
def instances(budget: Budget) -> Iterator[Result]:
    """Tables 3 and 4 and figures 14 to 16 of the paper on its simulated STCP920: the four variants of each network."""
    gains = []
    for label, network in NETWORKS.items():
        torch._dynamo.reset()
        try:
            rows = list(_network(f"{label} {network.title}", network))
        except DaceoptError as error:
            yield Result(f"{label} {network.title}", "refused", "", {}, notes={"reason": str(error)})
            continue
        gains.append(rows[0].ratios()[LAYERS])
        yield from rows
    if gains:
        mean = statistics.geometric_mean(gains)
        goal = f"{PAPER_GAIN} (the paper's mean)"
        yield Result("instances", f"mean gain, {len(gains)} networks", "x", {OURS: mean}, goal, mean >= PAPER_GAIN)


def _network(name: str, network: Network) -> Iterator[Result]:
    module = network.make().eval()
    runs, seconds = _variants(module, network)
    clusters = machines.get("stcp920").clusters
    each = {who: run.seconds / batch / clusters * 1e6 for who, (run, batch) in runs.items()}
    yield Result(name, "one input, all clusters", "us", each, notes=_busy(runs[OURS][0]))
    placed, paper = runs[OURS][0].places_by_level(), network.placed
    values = {"DDR": float(placed["memory"]), "LLB": float(placed["shared"]), "L1": float(placed["local"])}
    paper_text = {"paper": "/".join(map(str, paper)), "layer-wise": len(runs[LAYERS][0].placements)}
    values[OURS] = values["DDR"]
    yield Result(
        name, "results by memory", "", values, *at_most(values["DDR"], paper[0], "DDR of the paper"), paper_text
    )
    compiled = {OURS: seconds}
    yield Result(name, "import and scheduling", "s", compiled, *at_most(seconds, PAPER_COMPILE, "30 s"))


def _variants(module: nn.Module, network: Network) -> tuple[dict[str, tuple[Run, int]], float]:
    """Each variant's run on one cluster, with its batch; the processor seconds that ours was scheduled in."""
    machine, runs, layers = machines.get("stcp920"), {}, None
    baselines = []
    for batch in (network.layer_wise, network.instances):
        layers = simulate(module, *network.inputs(batch), recipe="layer-wise", keep="memory", pipelined=False)
        baselines.append((layers.run, batch))
    runs[LAYERS] = min(baselines, key=lambda pair: pair[0].seconds / pair[1])
    assert layers is not None
    with machines.assume(machine.cluster):
        Recipe("bound", ("core-binding",)).run(layers.graph)
    runs[SHARED] = run(layers.graph, machine, policy=Policy(keep="shared", pipelined=False)), network.instances
    runs[LOCAL] = run(layers.graph, machine, policy=Policy(pipelined=False)), network.instances
    start = time.process_time()
    ours = simulate(module, *network.inputs(network.instances))
    seconds = time.process_time() - start
    runs[INSTANCES] = run(ours.graph, machine, policy=Policy(pipelined=False)), network.instances
    runs[OURS] = ours.run, network.instances
    return runs, seconds


def _busy(run: Run) -> dict[str, Any]:
    """Shares of the time in which units work (figure 16), and what moves."""
    shares = {unit: f"{share * 100:.0f} %" for unit, share in sorted(run.busy.items())}
    return shares | {"MB in memory": round(run.traffic["memory"] / 1e6)}


class Tailored(nn.Module):
    """ResNet-18 between its first pool and its last: 16 convolutions with a ReLU each (section 5.6; the paper's figure
    18 is a drawing, so residual connections are left out as its caption has none)."""

    def __init__(self) -> None:
        super().__init__()
        sizes, layers = (64, 128, 256, 512), []
        for k, size in enumerate(sizes):
            for layer in range(4):
                step = 2 if k and not layer else 1
                layers += [nn.Conv2d(sizes[k - 1] if step == 2 else size, size, 3, step, 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@case
def gpu_instances(budget: Budget) -> Iterator[Result]:
    """Table 5: ResNet18-Tailor on a simulated GPU; an H200 stands in for the paper's A100."""
    module, paper = Tailored().eval(), {64: 1.19, 128: 1.25, 256: 1.24, 512: 1.24}
    for batch, gain in paper.items():
        torch._dynamo.reset()
        x = torch.randn(batch, 64, 56, 56)
        plain = simulate(module, x, machine="h200", recipe="layer-wise", keep="memory", pipelined=False)
        ours = simulate(module, x, machine="h200")
        values = {LAYERS: plain.seconds * 1e3, OURS: ours.seconds * 1e3}
        yield Result(f"table 5, {batch}", "one batch", "ms", values, *at_least(values, gain, LAYERS))
