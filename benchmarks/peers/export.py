"""A module as an ONNX file, for the peers that read one."""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.contenders import Inputs, Unavailable


def export(model: nn.Module, inputs: Inputs, folder: str) -> Path:
    """The file; it is as PyTorch's exporter writes it. Raises Unavailable where that refuses the module."""
    path = Path(folder) / "model.onnx"
    quiet = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            torch.onnx.export(copy.deepcopy(model).eval(), tuple(inputs), path, dynamo=True, verbose=False)
    except Exception as error:  # whatever stands in the exporter's way is the reason
        raise Unavailable(f"not exported: {type(error).__name__}") from error
    return path


def arrays(inputs: Inputs) -> list[np.ndarray]:
    return [x.detach().numpy() for x in inputs]


def only_inference(training: bool) -> None:
    """Raises Unavailable for training."""
    if training:
        raise Unavailable("inference only")
