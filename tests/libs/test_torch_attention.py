"""Attention by torch's operators on arrays of the host: the plumbing that a device has, with the kernels of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from daceopt import libs
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.attention_calls import AttentionBackward, AttentionForward, pad_rows
from daceopt.ir.scalar import types
from daceopt.libs.torch_attention import TorchAttention
from tests.libs.harness import compile_graph

NAME = "torch_attention"
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TorchAttention, "targets", ("cpu",))
    yield


@dataclass
class Case:
    """Heads of queries and keys, rows, keys, and what else a call says."""

    heads: tuple[int, int] = (4, 4)
    rows: int = 33
    keys: int = 40
    mask: tuple[int, ...] | None = None
    boolean: bool = False
    causal: bool = False
    scale: float = 0.3
    packed: bool = False
    turned: bool = False  # a position's heads side by side
    hidden: bool = False  # the mask hides all keys of a row

    def operands(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        lengths = {"Q": (self.heads[0], self.rows), "K": (self.heads[1], self.keys), "V": (self.heads[1], self.keys)}
        found = {c: self._heads(h, n).to(dtype) for c, (h, n) in lengths.items()}
        found["dY"] = self._heads(self.heads[0], self.rows).to(dtype)
        if self.mask is not None:
            mask = torch.rand(self.mask) > 0.3 if self.boolean else torch.randn(self.mask).to(dtype)
            if self.hidden:
                mask[..., 2, :] = False if self.boolean else -torch.inf
            found["Mask"] = mask
        return found

    def _heads(self, heads: int, length: int) -> torch.Tensor:
        if self.packed or self.turned:
            return torch.randn(2, length, heads, 16).transpose(1, 2)
        return torch.randn(2, heads, length, 16)


CASES = {
    "plain": Case(),
    "whole rows": Case(rows=64, turned=True),
    "causal": Case(causal=True, rows=40),
    "causal, fewer rows": Case(causal=True),
    "shared heads": Case(heads=(4, 2)),
    "shared heads, masked": Case(heads=(4, 2), mask=(33, 40)),
    "packed": Case(packed=True),
    "packed, shared": Case(packed=True, heads=(4, 2), mask=(2, 1, 1, 40), boolean=True),
    "mask": Case(mask=(2, 4, 33, 40)),
    "mask of rows": Case(mask=(33, 40)),
    "mask of columns": Case(mask=(2, 1, 1, 40), boolean=True),
    "three axes": Case(mask=(4, 33, 40), boolean=True),
    "hidden rows": Case(mask=(33, 40), boolean=True, hidden=True),
    "hidden rows, added": Case(mask=(33, 40), hidden=True),
    "one row": Case(rows=1, keys=7),
}


def _graph(case: Case, given: dict[str, torch.Tensor]) -> tuple[Graph, dict[str, str]]:
    """Both directions in one graph; results are outputs."""
    graph, names = Graph("attention"), {}
    kinds = {c: types.from_torch(t.dtype) for c, t in given.items()}

    def shape(t: torch.Tensor) -> tuple[int, ...]:
        if not case.packed:
            return tuple(t.shape)
        batch, heads, length, size = t.shape
        return batch, length, heads * size

    for c, t in given.items():
        own = tuple(t.shape) if c == "Mask" else shape(t)
        names[c] = graph.add_input(c.lower(), own, kinds[c])
        if c != "Mask" and not case.packed:
            graph.set_strides(names[c], t.stride())
    for c, like in (("Y", "dY"), ("dQ", "Q"), ("dK", "K"), ("dV", "V")):
        names[c] = graph.add_array(c.lower(), shape(given[like]), kinds[like])
    rows = (2, case.heads[0], pad_rows(case.rows))
    names["Lse"] = graph.add_array("lse", rows, types.from_torch(torch.float32))
    counts = dict(zip(("heads", "kv_heads"), case.heads)) if case.packed else {}
    settings = {"scale": case.scale, "causal": case.causal, **counts}
    reads = {c: names[c] for c in ("Q", "K", "V", "Mask") if c in names}
    graph.add_node(
        AttentionForward(inputs=tuple(reads), outputs=("Y", "Lse"), **settings),
        reads,
        {c: names[c] for c in ("Y", "Lse")},
    )
    reads |= {c: names[c] for c in ("Y", "Lse", "dY")}
    writes = {c: names[c] for c in ("dQ", "dK", "dV")}
    graph.add_node(AttentionBackward(inputs=tuple(reads), outputs=tuple(writes), **settings), reads, writes)
    for c in ("Y", "Lse", "dQ", "dK", "dV"):
        graph.add_output(names[c])
    return graph, names


def _run(case: Case, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    graph, names = _graph(case, given)
    memory = {names[c]: t if c == "Mask" else _packed(t) if case.packed else t for c, t in given.items()}
    for c in ("Y", "dQ", "dK", "dV", "Lse"):
        dtype = torch.float32 if c == "Lse" else given["Q"].dtype
        memory[names[c]] = torch.full(tuple(map(int, graph.shape(names[c]))), torch.nan, dtype=dtype)
    from tests.libs.harness import buffers

    compile_graph(graph)(*(memory[name] for name in buffers(graph)))
    found = {c: memory[names[c]] for c in ("Y", "dQ", "dK", "dV")}
    if case.packed:
        counts = {"Y": 0, "dQ": 0, "dK": 1, "dV": 1}
        found = {c: t.unflatten(2, (case.heads[counts[c]], 16)).transpose(1, 2) for c, t in found.items()}
    return found | {"Lse": memory[names["Lse"]]}


def _packed(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(1, 2).flatten(2).contiguous()


def _eager(case: Case, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    q, k, v = (given[c].detach().clone().requires_grad_() for c in "QKV")
    mask, shared = given.get("Mask"), case.heads[0] != case.heads[1]
    y = functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=case.causal, scale=case.scale, enable_gqa=shared
    )
    return dict(zip(("Y", "dQ", "dK", "dV"), (y.detach(), *torch.autograd.grad(y, (q, k, v), given["dY"]))))


def _wide(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {c: t.double() if t.is_floating_point() else t for c, t in given.items()}


def _check(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    given = case.operands(dtype)
    found, theirs = _run(case, given), _eager(case, given)
    with sdpa_kernel(SDPBackend.MATH):
        exact = _eager(case, _wide(given))
    step = torch.finfo(dtype).eps
    for c, right in exact.items():
        error, other = ((t[c].double() - right).abs().max() for t in (found, theirs))
        assert error <= 2 * other + 4 * step * right.abs().max(), f"{c}: off by {error}, eager by {other}"
    return found


@pytest.mark.share(2)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_both_directions(name: str, backend: SDPBackend) -> None:
    with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
        _check(CASES[name], torch.float32)


@pytest.mark.share(2)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "causal", "mask", "packed, shared", "hidden rows"])
def test_narrow_types(name: str, dtype: torch.dtype, backend: SDPBackend) -> None:
    with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
        _check(CASES[name], dtype)


def test_a_backward_does_not_depend_on_the_kernel_of_its_forward() -> None:
    """What is stored is the logarithm of the sum of exponentials, whoever has computed it; infinite behind the rows."""
    case, stored = CASES["mask"], []
    given = case.operands(torch.float32)
    for backend in BACKENDS:
        with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
            stored.append(_run(case, given)["Lse"])
    scores = given["Q"].double() @ given["K"].double().transpose(2, 3) * case.scale + given["Mask"]
    for lse in stored:
        torch.testing.assert_close(lse[:, :, : case.rows].double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
        assert lse[:, :, case.rows :].isinf().all()


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_computes_the_same(name: str) -> None:
    case = CASES[name]
    given = case.operands(torch.float32)
    graph, names = _graph(case, given)
    feeds = {names[c]: (_packed(t) if case.packed and c != "Mask" else t).numpy() for c, t in given.items()}
    done = interpret(graph, feeds)
    with sdpa_kernel(SDPBackend.MATH):
        exact = _eager(case, _wide(given))
    for c, right in exact.items():
        own = torch.from_numpy(done[names[c]]).double()
        if case.packed:
            own = own.unflatten(2, (right.shape[1], 16)).transpose(1, 2)
        torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-5)


def test_operations_are_those_of_the_products() -> None:
    graph, _ = _graph(CASES["plain"], CASES["plain"].operands(torch.float32))
    forward, backward = graph.nodes()
    scores = 2 * 4 * 33 * 40
    assert forward.flops(graph) == 2 * scores * 32 and backward.flops(graph) == 2 * scores * 16 * 5


def _refused(**shapes: Any) -> str:
    graph = Graph("refused")
    dtype = types.from_torch(shapes.pop("dtype", torch.float32))
    names = {c: graph.add_input(c.lower(), s, dtype) for c, s in shapes.items() if c != "Y"}
    y = graph.add_array("y", shapes["Y"], dtype)
    node = AttentionForward(inputs=tuple(names))
    graph.add_node(node, names, {"Y": y})
    return str(libs.why_not(NAME, node, graph))


def test_refusals_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    four = dict.fromkeys("QKVY", (2, 3, 8, 16))
    assert _refused(**four) == "None"
    assert "heads of size 18; torch's kernels take multiples of 4" in _refused(**dict.fromkeys("QKVY", (2, 3, 8, 18)))
    odd: dict[str, Any] = dict.fromkeys("QKVY", (2, 3, 8, 12))
    assert "multiples of 8" in _refused(dtype=torch.bfloat16, **odd)
    assert "expected one of float32, float16, bfloat16" in _refused(dtype=torch.float64, **four)
    monkeypatch.undo()
    assert _refused(**four) == "it works on arrays of cuda; these live on cpu"
