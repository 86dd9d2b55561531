"""OpenVINO on the CPU, in float32 (it would take bfloat16 where it can), with as many threads as PyTorch."""

from __future__ import annotations

import tempfile

import torch
from torch import nn

from benchmarks.contenders import ENTRIES, Contender, Inputs, Unavailable
from benchmarks.peers.export import arrays, export, only_inference


def enter(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    """Raises Unavailable for training, without OpenVINO, and for modules that are not exported."""
    only_inference(training)
    try:
        import openvino
    except ImportError as error:
        raise Unavailable("not installed: pip install -e .[bench]") from error
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    with tempfile.TemporaryDirectory() as folder:
        path = str(export(model, inputs, folder))
        try:
            program = openvino.compile_model(path, "CPU", options)
        except RuntimeError as error:  # how it says that it cannot read a model
            raise Unavailable(_reason(str(error))) from error
    request, feeds = program.create_infer_request(), arrays(inputs)

    def call() -> object:
        return request.infer(feeds, share_inputs=True, share_outputs=True)

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
