"""``python -m daceopt optimize``: compiles an ONNX file, checks it against ONNX Runtime and measures both."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daceopt.verification import relative_error, within_rounding


@dataclass
class Summary:
    """What was made of a model; errors are relative, on random inputs, against a float64 run of the model as it was."""

    model: str
    recipe: str
    kernels: int
    bytes_before: str
    bytes_after: str
    error: float
    error_onnxruntime: float
    correct: bool
    milliseconds: float
    milliseconds_onnxruntime: float
    compile_seconds: float

    def __str__(self) -> str:
        verdict = "within rounding" if self.correct else "LARGER THAN ROUNDING EXPLAINS"
        ratio = self.milliseconds_onnxruntime / self.milliseconds if self.milliseconds else float("nan")
        return "\n".join(
            (
                f"{self.model}  recipe {self.recipe}",
                f"  kernels   {self.kernels}",
                f"  bytes     {self.bytes_before} before, {self.bytes_after} after",
                f"  error     {self.error:.1e} against float64 (ONNX Runtime: {self.error_onnxruntime:.1e}): {verdict}",
                f"  time      {self.milliseconds:.3f} ms, {ratio:.2f}x as fast as ONNX Runtime",
                f"  compile   {self.compile_seconds:.2f} s",
            )
        )


def run(
    path: Path, recipe: Any, verify: str | None = None, output: Path | None = None, seconds: float = 1.0
) -> Summary:
    """Compile the ONNX file ``path`` with ``recipe`` and compare it with ONNX Runtime and float64 on random inputs.

    ``output``: a folder for the optimized graph as text and the summary as JSON. Raises DaceoptError with the reason.
    """
    from daceopt.capture.onnx_file import load
    from daceopt.cost.measure import interleave
    from daceopt.importer import import_model
    from daceopt.onnx_file import from_onnx
    from daceopt.verification import outputs, random_inputs

    start = time.perf_counter()
    compiled = from_onnx(path, recipe=recipe, verify=verify)
    elapsed = time.perf_counter() - start
    reference = import_model(load(path), fallback=True, refused=lambda node, reason: None)
    inputs = random_inputs(reference)
    feeds = list(inputs.values())
    theirs = _onnxruntime(path, feeds)
    times = interleave({"ours": lambda: compiled(*feeds), "onnxruntime": theirs}, seconds=seconds)
    exact = outputs(reference, inputs, exact=True)
    pair, graph = compiled.pair, compiled.pair.graphs.forward
    errors = [_errors(found, exact) for found in (_arrays(compiled(*feeds)), theirs())]
    history = pair.report["history"]
    summary = Summary(
        str(path),
        recipe.name,
        len(graph.kernels()),
        _megabytes(history[0]["bytes_before"] if history else None),
        _megabytes(history[-1]["bytes_after"] if history else None),
        max(errors[0], default=0.0),
        max(errors[1], default=0.0),
        all(map(within_rounding, *errors, [e.dtype.kind == "f" for e in exact])),
        times["ours"] * 1e3,
        times["onnxruntime"] * 1e3,
        elapsed,
    )
    if output is not None:
        _write(output, summary, graph)
    return summary


def _onnxruntime(path: Path, feeds: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = dict(zip((i.name for i in session.get_inputs()), feeds, strict=True))
    return lambda: [np.asarray(v) for v in session.run(None, named)]


def _errors(found: list[np.ndarray], exact: list[np.ndarray]) -> list[float]:
    return [relative_error(f, e) for f, e in zip(found, exact, strict=True)]


def _arrays(result: Any) -> list[np.ndarray]:
    values = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else [result]
    return [np.asarray(v) for v in values]


def _megabytes(amount: Any) -> str:
    return f"{amount / 1e6:.2f} MB" if isinstance(amount, (int, float)) else str(amount)


def _write(folder: Path, summary: Summary, graph: Any) -> None:
    from daceopt.ir.render import render

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "graph.txt").write_text(render(graph), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(asdict(summary), indent=1), encoding="utf-8")
