"""Train a small network on several processes, with daceopt and with PyTorch's DistributedDataParallel side by side.

    torchrun --nproc-per-node 2 examples/train_distributed.py [--strategy sharded | strategy.json] [--steps 200]
        [--timeline step.html]

Each process gets batches of its own; gradients are averaged over all of them while the backward pass still computes.
Prints the loss of both, how far apart their parameters end, and seconds a step, measured in turns.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import daceopt
from daceopt.explore.report import step_timeline
from daceopt.explore.simulation import measured_step

FEATURES, CLASSES, ROWS = 256, 10, 64
Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[..., torch.Tensor]


def network() -> nn.Module:
    """A perceptron with normalization."""
    layers: list[nn.Module] = []
    for width in (FEATURES, 512, 512):
        layers += [nn.Linear(width, 512), nn.LayerNorm(512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, CLASSES))


def batches(teacher: torch.Tensor, generator: torch.Generator) -> Iterator[Batch]:
    """Inputs, and the classes that a fixed matrix gives them."""
    while True:
        x = torch.randn(ROWS, FEATURES, generator=generator)
        yield x, (x @ teacher).argmax(dim=1)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of both."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def peer(model: nn.Module) -> Step:
    """PyTorch's step."""
    optimizer = adamw(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def asked() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--strategy", default="auto", help='"auto", "sharded", "none", or a file that was searched')
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--timeline", type=Path, help="draw a step as HTML, measured above simulated")
    return parser.parse_args()


def train(steps: Mapping[str, Step], batches: Iterable[Batch], count: int) -> dict[str, list[float]]:
    """Each on the first ``count`` batches, in turns; seconds of every step."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for k, (x, y) in enumerate(islice(batches, count)):
        for name, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            loss = step(x, y)
            seconds[name].append(time.perf_counter() - began)
            if dist.get_rank() == 0 and k % max(count // 10, 1) == 0:
                print(f"step {k:4d}  {name:24s} loss {float(loss):.5f}")
    return seconds


def report(seconds: Mapping[str, list[float]], apart: float) -> None:
    """Medians, without the first steps, and their ratio."""
    times = {name: statistics.median(own[len(own) // 4 :]) for name, own in seconds.items()}
    for name, median in times.items():
        print(f"{name:24s} {1e3 * median:.2f} ms a step")
    print(f"ratio {times['DistributedDataParallel'] / times['daceopt']:.2f}; parameters are {apart:.1e} apart at most")


def draw(path: Path, step: Step, plain: nn.Module, given: Batch, strategy: Any) -> None:
    """Write a step as it ran and as it is simulated; ``plain``: the same model, for a step that exchanges nothing."""
    alone = daceopt.training_step(plain, functional.cross_entropy, adamw(plain))
    both = measured_step.both(step, alone, given, strategy)
    if dist.get_rank() == 0:
        path.write_text(step_timeline.page(both, "A step of rank 0"), encoding="utf-8")
        print(f"written: {path}")


def main() -> None:
    """Train both on the same batches."""
    arguments = asked()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = network()
    teacher = torch.randn(FEATURES, CLASSES)
    theirs, plain = DistributedDataParallel(copy.deepcopy(model)), copy.deepcopy(model)
    ours = daceopt.data_parallel(model, strategy=arguments.strategy)
    step = daceopt.training_step(ours, functional.cross_entropy, adamw(ours))
    given = batches(teacher, torch.Generator().manual_seed(1 + dist.get_rank()))
    seconds = train({"daceopt": step, "DistributedDataParallel": peer(theirs)}, given, arguments.steps)
    if dist.get_rank() == 0:
        pairs = zip(ours.parameters(), theirs.parameters())
        report(seconds, max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs))
    if arguments.timeline is not None:
        draw(arguments.timeline, step, plain, next(given), ours.strategy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
