"""OpenVINO on the CPU, in float32 (it would take bfloat16 where it can), with as many threads as PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.contenders import ENTRIES, Contender, Inputs, Unavailable
from benchmarks.peers.export import arrays, export, only_inference


def enter(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    """Raises Unavailable for training, without OpenVINO, and for modules that are not exported."""
    only_inference(training)
    with tempfile.TemporaryDirectory() as folder:
        return of_model(export(model, inputs, folder), arrays(inputs))


def of_model(model: Path | bytes, feeds: Sequence[np.ndarray]) -> Contender:
    """A file, or its content. Raises Unavailable without OpenVINO, and for what it does not compile."""
    try:
        import openvino
    except ImportError as error:
        raise Unavailable("not installed: pip install -e .[bench]") from error
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    try:
        program = core.compile_model(core.read_model(model), "CPU", options)
    except RuntimeError as error:  # how it says that it cannot read a model
        raise Unavailable(_reason(str(error))) from error
    request = program.create_infer_request()

    def call() -> object:
        return request.infer(list(feeds), share_inputs=True, share_outputs=True)

    def results() -> list[torch.Tensor]:
        call()
        return [torch.from_numpy(request.get_output_tensor(0).data.copy())]

    return Contender(call, results)


def _reason(text: str) -> str:
    """What it failed at, without the places in its sources that come first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    at = next((i for i, line in enumerate(lines) if line.startswith("-- ")), 0)
    return f"does not compile the model: {' '.join(lines[at : at + 2])}"


ENTRIES["OpenVINO"] = enter
