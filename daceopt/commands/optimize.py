"""``python -m daceopt optimize``: compiles a model, checks it against another runtime, measures, writes it."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from daceopt.capture.onnx.importer import import_model
from daceopt.commands import model
from daceopt.cost.measure import interleave
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.text.render import render
from daceopt.models.onnx_model import OnnxModel, from_onnx
from daceopt.modules.frozen import FrozenProgram
from daceopt.passes.feeds import random_inputs
from daceopt.passes.rounding import outputs, relative_error, within_rounding
from daceopt.passes.witness import objection
from daceopt.runtime.bridge import TorchProgram
from daceopt.runtime.tensors import dtype_of, from_file, to_numpy, to_torch
from daceopt.standalone import export, stored_program

Arrays = list[np.ndarray]
_DOUBTFUL = 1e-5  # an error for which the reference may be to blame


@dataclass
class Summary:
    """What was made of a model; errors are those of its compiled part, relative to a float64 run of it as it was.

    ``peer``: what else runs it, ONNX Runtime or PyTorch. ``fallbacks``: operators that the peer runs, and why.
    ``error_written``: that of the program that was written, which calls other libraries. ``refused``: why none could
    be written. ``objection``: why the float64 run is no reference, if it is none.
    """

    model: str
    recipe: str
    kernels: int
    bytes_before: str
    bytes_after: str
    error: float
    peer: str
    error_peer: float
    correct: bool
    milliseconds: float
    milliseconds_peer: float
    compile_seconds: float
    fallbacks: dict[str, str] = field(default_factory=dict)
    error_written: float | None = None
    refused: str = ""
    objection: str = ""

    def __str__(self) -> str:
        verdict = "within rounding" if self.correct else self.objection or "LARGER THAN ROUNDING EXPLAINS"
        ratio = self.milliseconds_peer / self.milliseconds if self.milliseconds else float("nan")
        return "\n".join(
            (
                f"{self.model}  recipe {self.recipe}",
                f"  kernels   {self.kernels}",
                f"  bytes     {self.bytes_before} before, {self.bytes_after} after",
                f"  error     {self.error:.1e} against float64 ({self.peer}: {self.error_peer:.1e}): {verdict}",
                f"  time      {self.milliseconds:.3f} ms, {ratio:.2f}x as fast as {self.peer}",
                f"  compile   {self.compile_seconds:.2f} s",
                *([f"  in {self.peer}: {', '.join(self.fallbacks)}"] if self.fallbacks else []),
                *([f"  written   error {self.error_written:.1e}"] if self.error_written is not None else []),
            )
        )


@dataclass(frozen=True)
class _Subject:
    """A compiled model and what it is measured with: ``checked`` gives what it computes on ``feeds``, what the peer
    does for the same part, and what both should; ``theirs`` is a whole call of the peer; ``objection`` says why what
    both should compute is not known after all."""

    compiled: OnnxModel | FrozenProgram
    feeds: Arrays
    peer: str
    theirs: Callable[[], Any]
    checked: Callable[[Callable[..., Any] | None], tuple[Arrays, Arrays, Arrays]]
    fallbacks: dict[str, str]
    objection: Callable[[], str | None] = lambda: None


def arguments(parser: ArgumentParser) -> None:
    model.arguments(parser)
    model.inputs_argument(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write what daceopt.load runs, the graph and the report here"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="time to spend on measuring (default: 1)")


def run(options: Namespace) -> int:
    recipe, subject = model.recipe(options), model.model_of(options)
    summary = optimize(subject, recipe, options.verify, options.output, options.seconds, options.inputs)
    print(summary)
    if summary.refused:
        raise DaceoptError(f"{options.output} has no program: {summary.refused}")
    return 0 if summary.correct else 1


def optimize(
    subject: Path | model.ModuleOnDisk,
    recipe: Any,
    verify: str | None = None,
    output: Path | None = None,
    seconds: float = 1.0,
    inputs: Path | None = None,
) -> Summary:
    """Compile ``subject`` with ``recipe`` and compare it with float64 and with ONNX Runtime; a module, with PyTorch.

    ``inputs``: an ``.npz`` file with an array for each of an ONNX model's inputs; random ones without it. ``output``: a
    folder for what ``daceopt.load`` runs, the optimized graph as text and the summary as JSON. Raises DaceoptError with
    the reason.
    """
    start = time.perf_counter()
    measured = (
        _of_file(subject, recipe, verify, inputs) if isinstance(subject, Path) else _of_module(subject, recipe, verify)
    )
    elapsed = time.perf_counter() - start
    times = interleave({"ours": lambda: measured.compiled(*measured.feeds), "peer": measured.theirs}, seconds=seconds)
    title = str(subject) if isinstance(subject, Path) else subject.title
    summary = _summary(title, recipe.name, measured, times, elapsed)
    if output is not None:
        _write(output, summary, measured)
    return summary


def _of_file(path: Path, recipe: Any, verify: str | None, inputs: Path | None) -> _Subject:
    compiled = from_onnx(path, recipe=recipe, verify=verify)
    feeds = _feeds(compiled, inputs)
    compiled.prepare(*feeds)
    checks = _Checks(compiled, feeds)
    theirs, fallbacks = _onnxruntime(str(path), feeds), dict(compiled.pair.report["fallbacks"])
    return _Subject(compiled, feeds, "ONNX Runtime", theirs, checks.compare, fallbacks, checks.objection)


def _of_module(on_disk: model.ModuleOnDisk, recipe: object, verify: str | None) -> _Subject:
    frozen = on_disk.freeze()
    compiled, feeds = frozen.compile(recipe, verify), frozen.feeds

    def check(program: Callable[..., Any] | None) -> tuple[Arrays, Arrays, Arrays]:
        return _arrays((program or compiled)(*feeds)), frozen.eager(), frozen.exact()

    return _Subject(compiled, feeds, "PyTorch", frozen.eager, check, dict(compiled.pair.report["hosted"]))


def _summary(title: str, recipe: str, subject: _Subject, times: dict[str, float], elapsed: float) -> Summary:
    outcome = subject.checked(None)
    pair = subject.compiled.pair
    errors = [_errors(results, outcome[-1]) for results in outcome[:-1]]
    history = pair.report["history"]
    doubtful = any(error > _DOUBTFUL for each in errors for error in each)
    against = (subject.objection() if doubtful else None) or ""
    return Summary(
        title,
        recipe,
        len(pair.graphs.forward.kernels()),
        _megabytes(history[0]["bytes_before"] if history else None),
        _megabytes(history[-1]["bytes_after"] if history else None),
        max(errors[0], default=0.0),
        subject.peer,
        max(errors[1], default=0.0),
        not against and _within_rounding(errors, outcome[-1]),
        times["ours"] * 1e3,
        times["peer"] * 1e3,
        elapsed,
        subject.fallbacks,
        objection=against,
    )


def _within_rounding(errors: Sequence[Sequence[float]], exact: Arrays) -> bool:
    return all(map(within_rounding, *errors, [e.dtype.kind == "f" for e in exact]))


def _feeds(compiled: OnnxModel, path: Path | None) -> Arrays:
    """Arrays for the model's inputs: those of the file, or random ones."""
    if path is not None:
        return from_file(path, compiled.input_names)
    if compiled.dependence:
        raise DaceoptError(f"the program depends on {compiled.dependence}: give inputs, {_inputs_text(compiled)}")
    reference, names = _reference(compiled)
    random = dict(zip(names, random_inputs(reference).values(), strict=True))
    missing = [name for name in compiled.input_names if name not in random]
    if missing:
        raise DaceoptError(f"what input {missing[0]!r} may be is not known: give inputs, {_inputs_text(compiled)}")
    return [random[name] for name in compiled.input_names]


def _inputs_text(compiled: OnnxModel) -> str:
    """How inputs are given, with their types and shapes."""
    return f"--inputs FILE.npz with {'; '.join(compiled.signature)}"


def _reference(compiled: OnnxModel) -> tuple[Any, list[str]]:
    """The graph of what is compiled, before the recipe, and the model's names of its inputs."""
    proto = compiled.pair.model
    constants = {t.name for t in proto.graph.initializer}
    reference = import_model(proto, fallback=True, refused=lambda node, reason: None)
    return reference, [v.name for v in proto.graph.input if v.name not in constants]


class _Checks:
    """What the compiled part of a file should compute on ``feeds``, and what ONNX Runtime does; each is found once."""

    def __init__(self, compiled: OnnxModel, feeds: Arrays):
        self._compiled, self._feeds = compiled, feeds
        self._graph, names = _reference(compiled)
        feeds_of = dict(zip(compiled.input_names, feeds, strict=True))
        self._taken = [feeds_of[name] for name in names]

    @cached_property
    def _exact(self) -> Arrays:
        return outputs(self._graph, self._named, exact=True)

    @cached_property
    def _theirs(self) -> Arrays:
        return _onnxruntime(self._compiled.pair.model.SerializeToString(), self._taken)()

    @property
    def _named(self) -> dict[str, np.ndarray]:
        return dict(zip(self._graph.inputs, self._taken, strict=True))

    def compare(self, program: Callable[..., Any] | None) -> tuple[Arrays, Arrays, Arrays]:
        """What the compiled part, or ``program`` in its place, computes, what ONNX Runtime does, and what both
        should."""
        return self._ours(program), self._theirs, self._exact

    def objection(self) -> str | None:
        """Why the last of these is no reference."""
        return objection(self._graph, self._named, self._exact)

    def _ours(self, program: Callable[..., Any] | None) -> Arrays:
        compiled, proto = self._compiled, self._compiled.pair.model
        if program is not None or [v.name for v in proto.graph.output] == compiled.output_names:
            return _arrays((program or compiled)(*self._feeds))
        results = TorchProgram(compiled.pair, len(self._taken))([to_torch(array) for array in self._taken])
        dtypes = map(dtype_of, proto.graph.output)
        return [to_numpy(t, dtype) for t, dtype in zip(results, dtypes, strict=True) if dtype is not None]


def _onnxruntime(proto: str | bytes, feeds: Sequence[np.ndarray]) -> Callable[[], Arrays]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # its advice to who exported the file is not for who reads the summary
    session = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    named = dict(zip((i.name for i in session.get_inputs()), feeds, strict=True))
    return lambda: [np.asarray(v) for v in session.run(None, named)]


def _errors(results: Arrays, exact: Arrays) -> list[float]:
    return [relative_error(f, e) for f, e in zip(results, exact, strict=True)]


def _arrays(result: object) -> Arrays:
    values = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else [result]
    return [np.asarray(v) for v in values]


def _megabytes(amount: object) -> str:
    return f"{amount / 1e6:.2f} MB" if isinstance(amount, (int, float)) else str(amount)


def _write(folder: Path, summary: Summary, subject: _Subject) -> None:
    """The model as ``daceopt.load`` runs it, checked by doing so; its graph and the summary. Nothing where it cannot be
    written: a folder without a program would be taken for one."""
    try:
        export.write(subject.compiled, folder, summary.model)
        _check_written(summary, subject, stored_program.load(folder))
    except Unsupported as error:
        summary.refused = str(error)
        return
    (folder / "graph.txt").write_text(render(subject.compiled.pair.graphs.forward), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(asdict(summary), indent=1), encoding="utf-8")


def _check_written(summary: Summary, subject: _Subject, program: Callable[..., Any]) -> None:
    ours, theirs, exact = subject.checked(program)
    errors = [_errors(results, exact) for results in (ours, theirs)]
    summary.error_written = max(errors[0], default=0.0)
    summary.correct = summary.correct and _within_rounding(errors, exact)
