"""Processor seconds from a module to operator nodes: TorchDynamo, ATen, the graph; weights are not copied."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from benchmarks.front_end import capture_graph
from benchmarks.harness import OURS, Budget, Result, at_most, case

_BOUND = 15.0  # seconds each
Call = tuple[nn.Module, dict[str, torch.Tensor]]


def bert_large(layers: int = 24) -> Call:
    """Layers of 1024, batch 1, length 128."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=1024, num_hidden_layers=layers, num_attention_heads=16, intermediate_size=4096)
    return BertModel(config), {"input_ids": torch.randint(0, config.vocab_size, (1, 128))}


def resnet_152() -> Call:
    """152 layers, batch 1, 3x224x224."""
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig(depths=[3, 8, 36, 3])), {"pixel_values": torch.randn(1, 3, 224, 224)}


@case
def import_time(budget: Budget) -> Iterator[Result]:
    """BERT-large and ResNet-152 to a graph of operators, in processor seconds."""
    for name, make in {"BERT-large": bert_large, "ResNet-152": resnet_152}.items():
        seconds = statistics.median(_seconds(make) for _ in range(budget.repeats))
        goal = at_most(seconds, _BOUND, f"under {_BOUND:g} s")
        yield Result("import-time", name, "s", {OURS: seconds}, *goal)


def _seconds(make: Callable[[], Call]) -> float:
    from daceopt.capture.torch.importing import load

    module, inputs = make()
    start = time.process_time()
    with torch.no_grad():
        load(capture_graph(module.eval(), (), inputs))
    return time.process_time() - start
