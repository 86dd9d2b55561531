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
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import daceopt
from daceopt.explore import measured_step, step_timeline

FEATURES, CLASSES, ROWS = 256, 10, 64


def network() -> nn.Module:
    """A perceptron with normalization."""
    layers: list[nn.Module] = []
    for width in (FEATURES, 512, 512):
        layers += [nn.Linear(width, 512), nn.LayerNorm(512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, CLASSES))


def batch(teacher: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and the classes that a fixed matrix gives them."""
    x = torch.randn(ROWS, FEATURES, generator=generator)
    return x, (x @ teacher).argmax(dim=1)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of both."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def peer(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """PyTorch's step."""
    optimizer = adamw(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main() -> None:
    """Train both on the same batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--strategy", default="auto", help='"auto", "sharded", "none", or a file that was searched')
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--timeline", type=Path, help="draw a step as HTML, measured above simulated")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = network()
    teacher = torch.randn(FEATURES, CLASSES)
    theirs = DistributedDataParallel(copy.deepcopy(model))
    plain = copy.deepcopy(model)
    ours = daceopt.data_parallel(model, strategy=arguments.strategy)
    steps = {
        "daceopt": daceopt.training_step(ours, functional.cross_entropy, adamw(ours)),
        "DistributedDataParallel": peer(theirs),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for k in range(arguments.steps):
        x, y = batch(teacher, generator)
        for name, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            loss = step(x, y)
            seconds[name].append(time.perf_counter() - began)
            if dist.get_rank() == 0 and k % max(arguments.steps // 10, 1) == 0:
                print(f"step {k:4d}  {name:24s} loss {float(loss):.5f}")
    pairs = zip(ours.parameters(), theirs.parameters())
    apart = max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    if dist.get_rank() == 0:
        times = {name: statistics.median(own[len(own) // 4 :]) for name, own in seconds.items()}
        for name, median in times.items():
            print(f"{name:24s} {1e3 * median:.2f} ms a step")
        print(
            f"ratio {times['DistributedDataParallel'] / times['daceopt']:.2f}; parameters are {apart:.1e} apart at most"
        )
    if arguments.timeline is not None:
        loss_of = functional.cross_entropy
        alone = daceopt.training_step(plain, loss_of, adamw(plain))
        both = measured_step.both(steps["daceopt"], alone, batch(teacher, generator), ours.strategy)
        if dist.get_rank() == 0:
            arguments.timeline.write_text(step_timeline.page(both, "A step of rank 0"), encoding="utf-8")
            print(f"written: {arguments.timeline}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
