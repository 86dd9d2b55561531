"""The cases of ``onnx.backend.test``: models, inputs, expected outputs."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_KEPT = Path(__file__).parents[2] / "build" / "onnx-cases"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
_TEXT_OR_COMPLEX = (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128)


@dataclass(frozen=True)
class Case:
    """One test of the suite, loaded when asked for."""

    kind: str
    name: str
    test: Any  # onnx.backend.test.case.test_case.TestCase

    @property
    def model(self) -> onnx.ModelProto:
        if self.test.model is not None:
            return self.test.model
        return onnx.load(Path(self.test.model_dir) / "model.onnx")

    def data(self) -> list[tuple[list[Any], list[Any]]]:
        """Inputs and expected outputs of each data set: arrays, lists of them (sequences), None."""
        if self.test.data_sets is not None:
            return [tuple([_value(v) for v in side] for side in pair) for pair in self.test.data_sets]
        graph = self.model.graph
        folders = sorted(Path(self.test.model_dir).glob("test_data_set_*"))
        return [(_read(f, "input", graph.input), _read(f, "output", graph.output)) for f in folders]

    @property
    def tolerances(self) -> tuple[float, float]:
        """Relative and absolute."""
        return self.test.rtol, self.test.atol


@cache
def cases() -> dict[str, Case]:
    """All cases by name. The first process computes what is expected of them and keeps it for others."""
    versions = (onnx.__version__, onnx.__file__, np.__version__, sys.version)
    kept = _KEPT / hashlib.sha256("\n".join(versions).encode()).hexdigest()
    if not kept.exists():
        _KEPT.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_bytes(pickle.dumps(_compute()))
        new.replace(kept)
    return {test.name: Case(kind, test.name, test) for kind, test in pickle.loads(kept.read_bytes())}


def _compute() -> list[tuple[str, Any]]:
    """Kinds and tests of ONNX. Six seconds: expected outputs come from loops in Python."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite divides by zero on purpose
        return [(kind, test) for kind in KINDS for test in load_model_tests(kind=kind)]


def share_of(name: str, shares: int) -> int:
    """Which of so many shares a test belongs to, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % shares


def is_numeric(model: onnx.ModelProto) -> bool:
    """Are all inputs and outputs tensors of real numbers or truth values?"""
    types = [v.type for v in (*model.graph.input, *model.graph.output)]
    return all(t.HasField("tensor_type") and t.tensor_type.elem_type not in _TEXT_OR_COMPLEX for t in types)


def operator_of(case: Case) -> str:
    """The operator under test, or the kind of models that hold many."""
    if case.kind != "node":
        return case.kind
    base = cases().get(re.sub(r"_expanded(_ver\d+|_function)?.*$", "", case.name), case)
    nodes = [n.op_type for n in base.model.graph.node]
    return nodes[0] if len(nodes) == 1 else " ".join(sorted(set(nodes))[:3])


def _value(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _read(folder: Path, stem: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    files = sorted(folder.glob(f"{stem}_*.pb"), key=lambda f: int(f.stem.rpartition("_")[2]))
    return [_parse(f.read_bytes(), v.type) for f, v in zip(files, values)]


def _parse(data: bytes, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
