"""What ONNX expects of its cases is computed once, and read by other processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import numpy_helper

from tests.onnx_suite import cases


def test_cases_are_computed_once_and_equal_when_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32)
    test = SimpleNamespace(name="a", data_sets=[([numpy_helper.from_array(array)], [array])], rtol=1e-3, atol=0.0)
    computed: list[str] = []

    def compute() -> list[tuple[str, SimpleNamespace]]:
        computed.append("once")
        return [("node", test)]

    monkeypatch.setattr(cases, "_KEPT", tmp_path / "build")
    monkeypatch.setattr(cases, "_compute", compute)
    for _ in range(2):
        (case,) = cases.cases.__wrapped__().values()
        ((inputs, outputs),) = case.data()
        np.testing.assert_array_equal([*inputs, *outputs], [array, array], strict=True)
        assert (case.kind, case.name, case.tolerances) == ("node", "a", (1e-3, 0.0))
    assert computed == ["once"] and len(list((tmp_path / "build").iterdir())) == 1
