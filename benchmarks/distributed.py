"""Seconds a training step of data-parallel workers on a network of a given bandwidth and latency.

    python -m benchmarks.distributed [--rate 1gbit] [--latency 0ms] [--world 2] [--network perceptron] [--compiled]
        [--tune 5min]

Workers are processes of one thread in network namespaces, which this program makes and removes; where the kernel
forbids them it says so and ends with 3. All contenders are in each worker and take their steps in turns:
DistributedDataParallel with buckets of 1, 5, 25 and 1000 MB, where asked under torch.compile as well, then
``data_parallel`` with its strategies, where asked with the one that is fastest as timed, and a step without reductions.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import daceopt
from benchmarks.disco_search import prepare
from benchmarks.models.data_parallel import STEPS
from daceopt.distributed.search import allreduce_measurement
from daceopt.distributed.search.allreduce_time import AllReduceTime
from daceopt.distributed.search.baselines import BOTH, OPERATORS, apply_moves, baselines
from daceopt.distributed.search.step_simulator import StepSimulator

ROOT = Path(__file__).parents[1]
CAPS = (1, 5, 25, 1000)  # megabytes of a bucket of DistributedDataParallel
_DEFAULT_CAP = 25  # its own choice
ADDRESS = "10.213.7.{}"
TUNED = "tuned"
ALONE = "daceopt, no reductions"  # each worker steps for itself, all at once
Step = Callable[..., object]


class Work(NamedTuple):
    """A module, the loss of its result (and of targets), and a batch."""

    module: nn.Module
    loss: Callable[..., torch.Tensor]
    batch: tuple[torch.Tensor, ...]


class Encoder(nn.Module):
    """Transformer layers over tokens that are numbers already, and a class for each sequence."""

    def __init__(self, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, tokens, width) -> (rows, 10)"""
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    """Four wide layers: 13 MB of gradients."""
    layers: list[nn.Module] = []
    for width in (512, 1024, 1024):
        layers += [nn.Linear(width, 1024), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def _classify(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Work]:
    """A batch of ``shape`` and a class for each of its rows."""

    def work() -> Work:
        return Work(make(), functional.cross_entropy, (torch.randn(shape), torch.randint(0, 10, shape[:1])))

    return work


def _itself(loss: torch.Tensor) -> torch.Tensor:
    return loss


def _of_paper(name: str) -> Callable[[], Work]:
    """A network of the paper's evaluation: its module computes the loss."""

    def work() -> Work:
        module, batch = STEPS[name]()
        return Work(module, _itself, batch)

    return work


NETWORKS: Mapping[str, Callable[[], Work]] = {
    "perceptron": _classify(perceptron, 64, 512),
    "encoder": _classify(Encoder, 8, 64, 256),
    **{name: _of_paper(name) for name in STEPS},
}


# ---------------------------------------------------------------- a worker


def contenders(work: Work, compiled: bool, tune: str = "") -> dict[str, Step]:
    """Name -> step; each has a model and an optimizer of its own. ``compiled``: DDP under torch.compile as well;
    ``tune``: the time to find the fastest strategy in."""
    model = work.module
    steps: dict[str, Step] = {}
    for cap in CAPS:
        steps[f"DDP, {cap} MB"] = _eager(DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=cap), work.loss)
    if compiled:
        parallel = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=_DEFAULT_CAP)
        steps[f"DDP, {_DEFAULT_CAP} MB, torch.compile"] = _eager(torch.compile(parallel, dynamic=False), work.loss)
    for name in ("auto", "none", "sharded", *([TUNED] if tune else [])):
        own: dict[str, Any] = {"tune": tune} if name == TUNED else {"strategy": name}
        ours = daceopt.data_parallel(copy.deepcopy(model), fallback="raise", **own)
        steps[f"daceopt, {name}"] = daceopt.training_step(ours, work.loss, _sgd(ours), fallback="raise")
    alone = copy.deepcopy(model)
    steps[ALONE] = daceopt.training_step(alone, work.loss, _sgd(alone), fallback="raise")
    return steps


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _eager(model: nn.Module, loss: Callable[..., torch.Tensor]) -> Step:
    optimizer = _sgd(model)

    def step(*batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        if loss is _itself:
            loss(model(*batch)).backward()
        else:
            loss(model(*batch[:-1]), batch[-1]).backward()
        optimizer.step()

    return step


def take_round(chosen: Mapping[str, Step], batch: tuple[torch.Tensor, ...], number: int) -> dict[str, float]:
    """Seconds of a step of each contender."""
    names = list(chosen)
    turn = number % len(names)  # who follows whom changes: a step leaves caches and connections behind
    seconds = {}
    for name in [*names[turn:], *names[:turn]]:
        dist.barrier()
        began = time.perf_counter()
        chosen[name](*batch)
        seconds[name] = time.perf_counter() - began
    return seconds


def worker(network: str, steps: int, out: str, compiled: bool, tune: str = "") -> None:
    """One rank: rank 0 writes the seconds of each contender's steps, without reductions those of the slowest rank, and
    of all-reduces."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    reduction = allreduce_measurement.measure()
    torch.manual_seed(0)
    work = NETWORKS[network]()
    chosen = contenders(work, compiled, tune)
    rounds = [take_round(chosen, work.batch, k) for k in range(steps + 3)]
    # what compiles, and makes the optimizer's state, is over by the fourth
    seconds = {name: [own[name] for own in rounds[3:]] for name in chosen}
    slowest = torch.tensor(seconds[ALONE])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        content = {"seconds": {**seconds, ALONE: slowest.tolist()}, "reduction": asdict(reduction)}
        tuned: Any = chosen.get(f"daceopt, {TUNED}")
        content["tuned"] = tuned.daceopt.stats.tuning[0].report() if tuned else ""
        Path(out).write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------- the network


class Forbidden(Exception):
    """Namespaces cannot be made here; says why."""


def _run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise Forbidden(f"{' '.join(command)}: {process.stderr.strip() or process.returncode}")


@contextmanager
def namespaces(world: int, rate: str, latency: str) -> Iterator[list[str]]:
    """One namespace for each worker, all joined by a bridge in another; what leaves a worker has ``rate`` and
    ``latency``. Raises Forbidden."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise Forbidden(f"there is no program {missing[0]}; install iproute2")
    hub = f"daceopt-{os.getpid()}"
    names = [f"{hub}-{k}" for k in range(world)]
    with ExitStack() as stack:
        for name in (hub, *names):
            _run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for k, name in enumerate(names):
            _join(hub, name, k, rate, latency)
        yield names


def _join(hub: str, name: str, k: int, rate: str, latency: str) -> None:
    _run("ip", "-n", hub, "link", "add", f"port{k}", "type", "veth", "peer", "name", "net0", "netns", name)
    _run("ip", "-n", hub, "link", "set", f"port{k}", "master", "bridge", "up")
    _run("ip", "-n", name, "addr", "add", f"{ADDRESS.format(k + 1)}/24", "dev", "net0")
    _run("ip", "-n", name, "link", "set", "net0", "up")
    _run("ip", "-n", name, "link", "set", "lo", "up")
    added = ("tc", "-n", name, "qdisc", "add", "dev", "net0")
    shaped = ("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
    _run(*added, "root", "handle", "1:", *shaped)
    if latency != "0ms":  # not every kernel has netem
        _run(*added, "parent", "1:", "handle", "2:", "netem", "delay", latency)


def measure(options: argparse.Namespace, out: Path) -> tuple[dict[str, list[float]], AllReduceTime, str]:
    """Seconds of each step by contender, what an all-reduce takes between these workers, and what tuning tried."""
    world = options.world
    own = [sys.executable, "-m", "benchmarks.distributed", "--worker", "--network", options.network]
    own += ["--steps", str(options.steps), "--out", str(out), *(["--compiled"] if options.compiled else [])]
    own += ["--tune", options.tune]
    shared = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "net0"}
    shared |= {"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": "29500"}
    with namespaces(world, options.rate, options.latency) as names:
        children = []
        for rank, name in enumerate(names):
            environment = {**os.environ, **shared, "RANK": str(rank)}
            children.append(subprocess.Popen(["ip", "netns", "exec", name, *own], cwd=ROOT, env=environment))
        try:
            codes = [child.wait(timeout=1800) for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
        if any(codes):
            raise SystemExit(f"workers ended with {codes}")
    content = json.loads(out.read_text())
    return content["seconds"], AllReduceTime.of_fields(content["reduction"]), content["tuned"]


def table(seconds: Mapping[str, list[float]]) -> list[str]:
    """A line for each contender: median, least, and the best peer's median over its own."""
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    best = min(m for name, m in medians.items() if name.startswith("DDP"))
    lines = ["| contender | median, ms | least, ms | best DDP / median |", "|---|---|---|---|"]
    rows: list[tuple[Any, ...]] = [
        (n, 1e3 * medians[n], 1e3 * min(own), best / medians[n]) for n, own in seconds.items()
    ]
    return lines + [f"| {n} | {median:.1f} | {least:.1f} | {ratio:.2f} |" for n, median, least, ratio in rows]


# ---------------------------------------------------------------- the simulator


class Simulated(NamedTuple):
    """Seconds of a step, where cores are as free as when its parts were timed, and where each computation takes
    ``slowdown`` times as long."""

    free: float
    slowed: float
    slowdown: float


def simulate_network(network: str, reduction: AllReduceTime, alone: float) -> dict[str, Simulated]:
    """A step by the simulator that the search asks: strategy as the measured ones are called -> seconds.

    Of the very training step, on one thread: library calls and kernels as measured alone, reductions as measured
    between the workers. Of measured steps the simulator is told how long the slowest worker takes ``alone``, without
    reductions: on machines that others use a core is at times half as fast. Empty for networks that do not compute
    their loss themselves.
    """
    if network not in STEPS:
        return {}
    torch.manual_seed(0)
    module, batch = STEPS[network]()
    step = daceopt.training_step(module, None, _sgd(module))
    timed = prepare(step, batch, reduction.world, measured=True)
    print(f"simulated with {timed.said}")
    moves = baselines(timed.problem, timed.groups)
    slowdown = alone / apply_moves(timed.problem, moves[OPERATORS]).time.computation

    def seconds(rule: str, slower: float) -> float:
        problem = timed.problem._replace(reduction=reduction, simulator=StepSimulator((slower,)))
        return apply_moves(problem, moves[rule]).time.seconds

    return {
        f"daceopt, {name}": Simulated(seconds(rule, 1.0), seconds(rule, slowdown), slowdown)
        for name, rule in (("auto", BOTH), ("none", OPERATORS))
    }


def comparison(seconds: Mapping[str, list[float]], expected: Mapping[str, Simulated]) -> list[str]:
    """A line for each strategy that was simulated: simulated, measured, and how far off that is."""
    lines = []
    for name, simulated_step in expected.items():
        actual = statistics.median(seconds[name])
        texts = [
            f"{1e3 * value:.1f} ms ({value / actual - 1:+.1%})"
            for value in (simulated_step.free, simulated_step.slowed)
        ]
        lines.append(
            f"{name}: measured {1e3 * actual:.1f} ms; simulated {texts[0]}, {texts[1]} where computing takes "
            f"{simulated_step.slowdown:.2f} times as long, as it did"
        )
    return lines


def main() -> int:
    """Measure, or be a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--latency", default="0ms")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="perceptron")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compiled", action="store_true", help="DistributedDataParallel under torch.compile, too")
    parser.add_argument(
        "--tune", default="", metavar="TIME", help="with the strategy that is the fastest as timed, too"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.network, options.steps, options.out, options.compiled, options.tune)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which removes what was made
    out = Path(os.environ.get("TMPDIR", "/tmp")) / f"daceopt-distributed-{os.getpid()}.json"
    try:
        seconds, reduction, tuned = measure(options, out)
    except Forbidden as error:
        print(f"skipped: network namespaces cannot be made here: {error}")
        return 3
    finally:
        out.unlink(missing_ok=True)
    print(f"{options.network}, {options.world} workers, {options.rate}, {options.latency}, {options.steps} steps")
    print("\n".join([*table(seconds), str(reduction), tuned]))
    expected = simulate_network(options.network, reduction, statistics.median(seconds[ALONE]))
    print("\n".join(comparison(seconds, expected)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
