"""Graphs as SDFGs of plain DaCe: a process without daceopt validates, loads, compiles and runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
from torch import nn

import daceopt
from daceopt import ops, optimized_module
from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import HostCall
from daceopt.ir.scalar import scalar, types
from daceopt.programs.plain import plain
from tests.onnx_models import FLOAT, proto
from tests.programs import plain_checking
from tests.transformations.lowered import schedule_tiles

F = dace.float32


def loops() -> Graph:
    """Reductions of both kinds, a product of a transposed view, a part of an array, a gather; rows are counted when
    running. What is infinite stays so."""
    graph = Graph("loops")
    rows = dace.symbolic.symbol("n0", dace.int64)  # also the name of a size in printed code
    x, w = graph.add_input("x", (rows, 30), F), graph.add_input("w", (30,), F)
    k = graph.add_input("k", (5,), dace.int64)
    graph.symbols["n0"] = (x, 0)
    b = Builder(graph)
    mean = b.reduce("sum", lambda v: v / 30, x, axes=(1,), keepdims=True)
    y = b.elementwise(lambda v, m, s: sympy.tanh(v - m) * s, x, mean, w)
    graph.add_output(b.matmul(y, b.transpose(y, (1, 0))))
    graph.add_output(b.reduce("max", None, b.slice(y, [1], [20], axes=[1]), axes=(0, 1)))
    picked = graph.add_array("picked", (5,), F)
    reads = {"v": (w, lambda i: (None,)), "at": (k, lambda i: (i,))}
    b.map((5,), reads, {"out": (picked, lambda i: (i,))}, lambda i, v, at: scalar.load(v, at))
    graph.add_output(picked)
    masked = b.elementwise(lambda v: scalar.select(scalar.gt(v, 0), v, -scalar.infinity()), x)
    graph.add_output(b.elementwise(lambda v: scalar.select(scalar.isinf(v), 1, 0), masked, dtype=dace.int32))
    return graph


def constants() -> Graph:
    """A small constant in the code, a large one as an argument; halves are kept as bits."""
    graph = Graph("constants")
    small = graph.add_constant("small", np.array([0.1, np.nan, -0.0, np.inf], np.float32))
    large = graph.add_constant("large", np.arange(5000, dtype=np.float32))
    x = graph.add_input("x", (4,), types.BFLOAT16)
    b = Builder(graph)
    graph.add_output(b.elementwise(lambda v, c: v + c, x, small, dtype=F))
    graph.add_output(b.reduce("sum", None, large, axes=(0,)))
    graph.add_output(b.elementwise(lambda v: v * v, x, dtype=types.BFLOAT16))
    return graph


def attention(dtype: Any, **attributes: Any) -> Graph:
    """Tiles whose products are calls of micro-kernels; two heads of queries share one of keys."""
    graph = Graph("attention")
    shapes = [(2, 4, 40, 16), (2, 2, 70, 16), (2, 2, 70, 9)]
    names = [graph.add_input(n, s, dtype) for n, s in zip("qkv", shapes, strict=True)]
    y = graph.add_array("y", (2, 4, 40, 9), dtype)
    graph.add_operator("TiledAttention", names, [y], {"scale": 0.25, "rows": 16, "keys": 8, **attributes}, "daceopt")
    graph.add_output(y)
    ops.lower_all(graph)
    graph.prune()
    assert schedule_tiles(graph)
    return graph


def test_kernels_constants_and_micro_kernels(tmp_path: Path) -> None:
    sizes = {"loops": {"x_1": np.random.default_rng(1).standard_normal((3, 30), dtype=np.float32)}}
    graphs = {"narrow": attention(types.BFLOAT16), "causal": attention(F, is_causal=1)}
    plain_checking.check(tmp_path, {"loops": loops(), "constants": constants(), **graphs}, sizes)


def test_data_moves_along_edges() -> None:
    """Maps with memlets of what each iteration takes, not calls over whole arrays."""
    sdfg = plain(loops()).sdfg
    entries = [(n, s) for n, s in sdfg.all_nodes_recursive() if isinstance(n, dace.nodes.MapEntry)]
    assert len(entries) >= 5
    taken = {str(e.data.subset) for n, s in entries for e in s.out_edges(n)}
    assert "I0, I1" in taken and "I0, 0:30" in taken, taken


def test_it_is_the_graph_that_it_was() -> None:
    graph = loops()
    before = graph.nodes()
    plain(graph)
    assert graph.nodes() == before and not any(n.endswith("_of_1") for n in graph.arrays())


class Convolved(nn.Module):
    """A training step in small: windows, statistics, a table, a softmax, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.norm = nn.Conv2d(2, 4, 3, padding=1, stride=2, groups=2), nn.BatchNorm2d(4)
        self.pool, self.head, self.table = nn.MaxPool2d(2), nn.Linear(4, 5), nn.Embedding(7, 5)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        h = self.pool(torch.relu(self.norm(self.window(x)))).mean((2, 3))
        return torch.softmax(nn.functional.dropout(self.head(h), 0.25) + self.table(k), -1)


class Sorted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, at = torch.topk(x.cumsum(1), 2)
        return values * at + torch.flip(x, [1])[:, :2]


MODELS: dict[str, Any] = {
    "convolved": (Convolved, (torch.ones(2, 2, 8, 8).cumsum(3), torch.tensor([1, 6])), False),
    "recurrent": (lambda: nn.LSTM(5, 4), (torch.ones(6, 2, 5).cumsum(0),), False),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.ones(2, 5, 8),), False),
    "sorted": (Sorted, (torch.ones(3, 6).cumsum(1),), False),
    "autocast": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Conv1d(2, 2, 3)), (torch.ones(3, 2, 6),), True),
}


def trained(name: str, recipe: str = "cpu") -> nn.Module:
    """A module after a call and its backward pass."""
    make, args, narrow = MODELS[name]
    net = optimized_module(make(), fallback="raise", recipe=recipe)
    args = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
        found = net(*args)
    (found[0] if isinstance(found, tuple) else found).float().sum().backward()
    return net


@pytest.mark.slow  # DaCe takes a while to compile
@pytest.mark.breadth
@pytest.mark.parametrize("name", MODELS)
def test_both_directions_of_modules(name: str, tmp_path: Path) -> None:
    graphs = trained(name).daceopt._pair().graphs
    plain_checking.check(tmp_path, {"forward": graphs.forward, "backward": graphs.backward})


def test_the_gradient_of_a_module_is_pytorch_s(tmp_path: Path) -> None:
    """Forward, then backward on what the forward has left, both by plain DaCe."""
    net = optimized_module(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), fallback="raise", recipe="none", dynamic=False
    )
    x = torch.randn(5, 3, requires_grad=True)
    net(x).pow(2).sum().backward()
    forward, backward = net.daceopt.sdfg, net.daceopt.backward_sdfg
    arguments = dict(zip(net.daceopt._pair().graphs.forward.inputs, _tensors(net, x)))
    left = _ran(tmp_path / "forward", forward, arguments)
    received = net.daceopt._pair().graphs.program.received
    gradient = next(n for n, role in received.items() if str(role) == "grad:0")
    output = net.daceopt._pair().graphs.forward.outputs[0]
    given = {n: v for n, v in {**arguments, **left, gradient: 2 * left[output]}.items() if n in backward.arrays}
    found = _ran(tmp_path / "backward", backward, given)
    position = net.daceopt._pair().graphs.forward.inputs.index(
        next(n for n, v in arguments.items() if v.shape == (5, 3))
    )
    roles = net.daceopt._pair().graphs.program.roles(net.daceopt._pair().graphs.backward)
    name = next(n for n, role in roles.items() if role == f"grad_input:{position}")
    np.testing.assert_allclose(found[name], x.grad.numpy(), rtol=1e-4, atol=1e-6)


def _tensors(net: nn.Module, x: torch.Tensor) -> list[np.ndarray]:
    """The arguments of the program, by their shapes, which all differ."""
    shapes = {tuple(t.shape): t.detach().numpy() for t in (*net.parameters(), x)}
    graph = net.daceopt._pair().graphs.forward
    return [shapes[tuple(graph.shape(n))] for n in graph.inputs]


def _ran(folder: Path, sdfg: dace.SDFG, arguments: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    folder.mkdir()
    sdfg.save(str(folder / "program.sdfg"))
    made = {n: np.zeros(d.shape, d.dtype.type) for n, d in sdfg.arrays.items() if not d.transient}
    np.savez(folder / "program.npz", **made | arguments)
    plain_checking.run(folder)
    return dict(np.load(folder / "program-out.npz"))


def test_onnx_files_take_their_large_weights_as_arguments(tmp_path: Path) -> None:
    import onnx

    weights = np.random.default_rng(0).standard_normal((80, 80), dtype=np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["p"]), onnx.helper.make_node("Relu", ["p"], ["y"])]
    model = proto(nodes, [("x", FLOAT, [2, 80])], [("y", FLOAT, [2, 80])], constants={"w": weights})
    program = daceopt.from_onnx(model, fallback=False)
    (name,) = program.constants
    assert name in program.sdfg.arglist() and np.array_equal(program.constants[name], weights)
    plain_checking.check(tmp_path, {"file": program.pair.graphs.forward})


def test_calls_of_python_are_refused_with_what_they_are() -> None:
    graph = Graph("hosted")
    x = graph.add_input("x", (3,), F)
    y = graph.add_array("y", (3,), F)
    node = HostCall("call", inputs=["In0"], outputs=["Out0"], callback="numpy:copy")
    graph.add_node(node, {"In0": x}, {"Out0": y})
    graph.add_output(y)
    with pytest.raises(Unsupported, match="plain DaCe cannot run this program: no library implements HostCall 'call'"):
        plain(graph)
