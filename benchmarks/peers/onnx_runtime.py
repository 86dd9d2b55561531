"""ONNX Runtime: a session with all of its optimizations, and as many threads as PyTorch has."""

from __future__ import annotations

import tempfile

import onnxruntime
import torch
from torch import nn

from benchmarks.contenders import ENTRIES, Contender, Inputs
from benchmarks.peers.export import arrays, export, only_inference


def enter(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    """Raises Unavailable for training, and for modules that are not exported."""
    only_inference(training)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or they take the turns of others, too
    with tempfile.TemporaryDirectory() as folder:
        path = export(model, inputs, folder)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), arrays(inputs)))
    return Contender(lambda: session.run(None, feeds), lambda: [torch.from_numpy(session.run(None, feeds)[0])])


ENTRIES["ONNX Runtime"] = enter
