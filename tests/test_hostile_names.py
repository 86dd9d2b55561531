"""Names out of a model file or a module stay data: nothing of them reaches generated code, and nothing runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import daceopt
from tests.numerics import assert_within_rounding
from tests.test_bad_input import WEIGHTS, product

MARK = "pwned_by_name"
HOSTILE = {
    "code": f'"; system("touch {MARK}"); //',
    "comment": f'*/ system("touch {MARK}"); /*',
    "shell": f"$(touch {MARK})`touch {MARK}`",
    "python": f"__import__('os').system('touch {MARK}')",
    "unicode": "été\u202e漢字",
    "keyword": "operator",
    "sympy": "I",
    "lines": f"a\n#include </etc/passwd> // {MARK}\n",
    "format": "%s%n{0}\\",
    "long": "n" * 10_000,
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> Path:
    """What was compiled for one name; if names stay data, others need the same."""
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def sources(monkeypatch, tmp_path: Path, fresh_cache: Path, objects: Path) -> Iterator[list[str]]:
    """Every source that is handed to the compiler; the current folder is one to look for traces in."""
    from daceopt.codegen import assemble

    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(fresh_cache))
    monkeypatch.chdir(tmp_path)
    compiled = fresh_cache / "v1" / "entries" / "object"
    shutil.copytree(objects, compiled)
    seen: list[str] = []
    real = assemble.compile_objects

    def record(jobs, store):
        seen.extend(job.source for job in jobs)
        return real(jobs, store)

    monkeypatch.setattr(assemble, "compile_objects", record)
    yield seen
    shutil.copytree(compiled, objects, dirs_exist_ok=True)


def assert_harmless(sources: list[str], name: str) -> None:
    # Letters of a name may survive in an identifier of ours; its punctuation may not.
    assert sources and not any(f"touch {MARK}" in source or f"// {MARK}" in source for source in sources)
    assert len(name) <= 8 or not any(name in source for source in sources)
    assert all(source.isascii() for source in sources)
    assert not list(Path().rglob(f"*{MARK}*"))


@pytest.mark.parametrize("kind", HOSTILE)
def test_names_of_a_model_file(kind: str, sources: list[str]) -> None:
    name = HOSTILE[kind]
    model = product(name, name + "_w", name + "_h", name + "_y", batch=name, node=name)
    model.graph.name = model.producer_name = model.doc_string = name
    compiled = daceopt.from_onnx(model, fallback=False)
    x = torch.randn(3, 4)
    weights = torch.from_numpy(WEIGHTS)
    assert_within_rounding(compiled(**{name: x}), torch.relu(x.double() @ weights.double()), torch.relu(x @ weights))
    assert compiled.output_names == [name + "_y"]
    assert_harmless(sources, name)


def test_names_of_an_operator_that_runs_in_onnx_runtime(sources: list[str]) -> None:
    from onnx import helper

    from tests.test_bad_input import proto, tensor

    name = HOSTILE["code"]
    node = helper.make_node("Binarizer", [name], [name + "_y"], name=name, domain="ai.onnx.ml", threshold=0.5)
    model = proto([node], [tensor(name, (2, 3))], [tensor(name + "_y", (2, 3))])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    with pytest.warns(daceopt.errors.FallbackWarning):
        compiled = daceopt.from_onnx(model)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), (x > 0.5).float())
    assert_harmless(sources, name)


class Named(nn.Module):
    """A module whose parameter, buffer and child carry the name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_parameter(name + "_p", nn.Parameter(torch.ones(4)))
        self.register_buffer(name + "_b", torch.full((4,), 2.0))
        self.add_module(name + "_m", nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        child = self._modules[self.name + "_m"]
        return {self.name: child(x) * self._parameters[self.name + "_p"] + self._buffers[self.name + "_b"]}


@pytest.mark.parametrize("kind", [k for k in HOSTILE if "." not in HOSTILE[k]])  # which PyTorch itself refuses
def test_names_of_a_module(kind: str, sources: list[str]) -> None:
    name = HOSTILE[kind]
    reference = Named(name)
    ours = Named(name)
    ours.load_state_dict(reference.state_dict())
    daceopt.optimized_module(ours, fallback="raise")
    x = torch.randn(3, 4)
    for module in (reference, ours):
        module(x)[name].square().sum().backward()
    torch.testing.assert_close(ours(x), reference(x))
    for mine, theirs in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert_harmless(sources, name)


def test_names_in_a_report() -> None:
    name = f'<script>{MARK}</script>"; //'
    report = daceopt.explain(product(name, name + "_w", name + "_h", name + "_y", node=name), measure=False)
    page = report.html()
    assert f"<script>{MARK}" not in page and not re.search(r"<[^>]*pwned", page)
    assert MARK in str(report)
