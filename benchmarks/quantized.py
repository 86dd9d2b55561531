"""Networks of 8-bit integers (QDQ, as ONNX Runtime's quantizer writes them) beside ONNX Runtime and OpenVINO."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import daceopt
from benchmarks.checking import Check, Results
from benchmarks.comparison import compare, participants
from benchmarks.contenders import Contender, Inputs, Unavailable
from benchmarks.harness import OURS, Budget, Result, case
from benchmarks.models.suite import Example
from benchmarks.peers import onnx_runtime, open_vino
from benchmarks.peers.export import arrays, export
from benchmarks.suite import networks

NETWORKS = ("resnet50", "mobilenet_v2", "bert_layer")
_CALIBRATION = 4  # batches


@case
def networks_inference_int8(budget: Budget) -> Iterator[Result]:
    """Calls of networks quantised with random calibration data: uint8 activations, int8 weights per channel."""
    yield from networks("inference, int8", budget, 1.15, _row, NETWORKS)


def _row(what: str, name: str, make: Callable[[], Example], budget: Budget) -> Result:
    torch.manual_seed(0)
    module, inputs = make()
    try:
        model = quantize(module.eval(), inputs)
    except Unavailable as reason:
        return Result(what, name, "ms", {}, notes={OURS: str(reason)})
    values = arrays(inputs)
    contenders, absent = {}, {}
    for who in participants(("ONNX Runtime", "OpenVINO", OURS), budget):
        try:
            contenders[who] = _ENTRIES[who](model, values)
        except (Unavailable, KeyError) as reason:
            absent[who] = str(reason)
    return compare(what, name, contenders, _check(model, values), budget, limit=None, absent=absent)


def quantize(module: nn.Module, inputs: Inputs) -> bytes:
    """The module as an ONNX file with QuantizeLinear and DequantizeLinear around what is computed with 8 bits.

    Raises Unavailable where ONNX Runtime's quantizer is missing, or the module is not exported.
    """
    try:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    except ImportError as error:
        raise Unavailable("no quantizer: pip install onnx onnxruntime") from error
    with tempfile.TemporaryDirectory() as folder:
        source, target = export(module, inputs, folder), Path(folder) / "quantized.onnx"
        quantize_static(
            str(source),
            str(target),
            _Batches(source, inputs),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return target.read_bytes()


class _Batches:
    """What the quantizer reads: random inputs of the same shapes, by name."""

    def __init__(self, path: Path, inputs: Inputs) -> None:
        import onnx

        names = [i.name for i in onnx.load(path, load_external_data=False).graph.input]
        batches = [arrays([torch.randn_like(x) for x in inputs]) for _ in range(_CALIBRATION)]
        self._left = iter([dict(zip(names, batch)) for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def _ours(model: bytes, values: Sequence[np.ndarray]) -> Contender:
    program = daceopt.from_onnx(model, fallback=False)
    return Contender(lambda: program(*values), lambda: [torch.as_tensor(np.asarray(program(*values)))])


_ENTRIES = {"ONNX Runtime": onnx_runtime.of_model, "OpenVINO": open_vino.of_model, OURS: _ours}


def _check(model: bytes, values: Sequence[np.ndarray]) -> Check:
    """The graph evaluated in float64. Rounding explains what ONNX Runtime does in float32 with operands a unit in the
    last place beside: what becomes another integer goes on as such."""
    exact = [torch.from_numpy(v) for v in _in_float64(model, values)]
    return Check(exact, onnx_runtime.of_model(model, values).results(), _disturb(model, values))


def _in_float64(model: bytes, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    from daceopt import ops
    from daceopt.capture.onnx.file import load
    from daceopt.capture.onnx.importer import import_model
    from daceopt.ir.interpreter.interpret import interpret

    graph = import_model(load(model))
    ops.lower_all(graph)
    results = interpret(graph, dict(zip(graph.inputs, values)), np.float64)
    return [results[name] for name in graph.outputs]


def _disturb(model: bytes, values: Sequence[np.ndarray]) -> Results:
    noise = np.random.default_rng(0)

    def call() -> Sequence[torch.Tensor]:
        moved = [x * (1 + noise.integers(-1, 2, x.shape) * np.finfo(x.dtype).eps).astype(x.dtype) for x in values]
        return onnx_runtime.of_model(model, moved, optimized=False).results()

    return call
