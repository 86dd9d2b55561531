"""ONNX Runtime: a session with all of its optimizations, and as many threads as PyTorch has."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks.contenders import ENTRIES, Contender, Inputs
from benchmarks.peers.export import arrays, export, only_inference


def enter(model: nn.Module, inputs: Inputs, training: bool) -> Contender:
    """Raises Unavailable for training, and for modules that are not exported."""
    only_inference(training)
    with tempfile.TemporaryDirectory() as folder:
        return of_model(export(model, inputs, folder), arrays(inputs))


def of_model(model: Path | bytes, values: Sequence[np.ndarray], optimized: bool = True) -> Contender:
    """A file, or its content; ``optimized``: with the operators that it fuses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")  # or they take the turns of others, too
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), values))
    return Contender(lambda: session.run(None, feeds), lambda: [torch.from_numpy(session.run(None, feeds)[0])])


ENTRIES["ONNX Runtime"] = enter
