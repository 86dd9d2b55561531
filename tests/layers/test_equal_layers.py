"""Programs of networks with many equal layers, which are derived with a few of them: right, and the same as of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from daceopt.errors import UnequalLayers
from daceopt.ir.control.imported import Imported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.layers import equal_layers
from daceopt.layers.equal_layers import EqualLayers
from daceopt.layers.node_keys import NodeKeys, draws
from daceopt.layers.shortening import KEPT, LEAST
from daceopt.passes.recipe import recipes
from daceopt.programs import derivation
from daceopt.programs.derivation import Derived
from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

LAYERS, WIDTH = LEAST + 2, 8


class Block(nn.Module):
    """A normalized perceptron, added to what it reads."""

    def __init__(self, eps: float = 1e-5, dropout: float = 0.0):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class Attending(Block):
    """Attention of one head before it, of twice as many operators: where many in a layer matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        return super().forward(x + nn.functional.scaled_dot_product_attention(q, k, v))


class Network(nn.Module):
    """Blocks between two linear layers; ``results``: of which blocks the results are returned, too."""

    def __init__(self, blocks: Sequence[nn.Module], results: Sequence[int] = ()):
        super().__init__()
        self.start, self.end = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks, self.results = nn.ModuleList(blocks), results

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = self.start(x)
        found = []
        for k, block in enumerate(self.blocks):
            x = block(x)
            found += [x] if k in self.results else []
        return [self.end(x), *found]


@pytest.fixture
def lengthenings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers were copied, each time that a program was made longer."""
    found: list[int] = []
    original = equal_layers.lengthen

    def recorded(program: Any, cut: Any) -> Any:
        made = original(program, cut)
        found.append(cut.dropped)
        return made

    monkeypatch.setattr(equal_layers, "lengthen", recorded)
    return found


def right(net: nn.Module, *inputs: torch.Tensor, recipe: str = "cpu") -> Derived:
    """Results and gradients by inputs and weights are those of float64; returns what was derived."""
    through, grad = partial(compile_interpreted, through=recipe), torch.is_grad_enabled()
    backend = check(net, *inputs, pipeline=through, grad=grad)
    (piece,) = backend.graphs
    derived: Derived = piece.pair.source.graphs
    for graph in derived.program.directions():
        graph.validate()
    return derived


def whole(derived: Derived, recipe: str = "cpu") -> Derived:
    """The same program, of which all layers are derived."""
    return derivation._run_recipe(EqualLayers(derived.imported), recipes.get(recipe), None)


def _values(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kinds = {name: np.dtype(graph.dtype(name).type) for name in graph.inputs}
    return {name: np.abs(rng.standard_normal(graph.shape(name))).astype(kind) for name, kind in kinds.items()}


def contents(graph: Graph, keys: NodeKeys) -> tuple[Counter[int], list[int]]:
    """What is computed, and by which numbers is drawn."""
    nodes = graph.nodes()
    return Counter(keys.of(graph, n) for n in nodes), sorted(d for n in nodes for d in draws(graph, n))


@pytest.mark.parametrize(
    ("blocks", "shape"),
    [
        (lambda: [Attending() for _ in range(LAYERS)], (2, 5, WIDTH)),
        (lambda: [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)], (3, WIDTH)),
    ],
    ids=["attention", "perceptron"],
)
@pytest.mark.parametrize("results", [(), range(LAYERS)], ids=["one result", "a result of each layer"])
def test_layers_are_copied(
    blocks: Callable[[], list[nn.Module]], shape: tuple[int, ...], results: Sequence[int], lengthenings: list[int]
) -> None:
    torch.manual_seed(0)
    derived = right(Network(blocks(), results), torch.randn(shape))
    assert lengthenings and lengthenings[0] >= LAYERS - KEPT - 1
    keys, other = NodeKeys(), whole(derived)
    for graph, expected in zip(derived.program.directions(), other.program.directions(), strict=True):
        assert contents(graph, keys) == contents(expected, keys)
        assert Counter(derived.program.roles(graph).values()) == Counter(other.program.roles(expected).values())
        assert len(graph.saved) == len(expected.saved)
    assert derived.history[-1].nodes_after == other.history[-1].nodes_after


def test_layers_of_images_are_copied_in_inference(lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(LAYERS)])
    with torch.no_grad():
        right(net, torch.randn(1, 4, 5, 5))
    assert lengthenings


def test_layers_that_write_their_buffers(lengthenings: list[int]) -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.norm(self.linear(x)))

    torch.manual_seed(0)
    with torch.no_grad():
        derived = right(Network([Counted() for _ in range(LAYERS)]), torch.randn(5, WIDTH))
    assert lengthenings and derived.forward.replaced == derived.imported.graph.replaced
    feeds = _values(derived.imported.graph)
    ours, expected = (interpret(graph, feeds) for graph in (derived.forward, derived.imported.graph))
    for name, other in zip(derived.forward.outputs, derived.imported.graph.outputs, strict=True):
        np.testing.assert_allclose(ours[name], expected[other], rtol=1e-4, atol=1e-5)


def test_two_kinds_of_layers(lengthenings: list[int]) -> None:
    """As of an encoder and a decoder."""
    torch.manual_seed(0)
    tanhs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    right(Network([*[Block() for _ in range(LAYERS)], *tanhs]), torch.randn(2, 5, WIDTH))
    assert len(lengthenings) == 2


def test_each_layer_draws_by_its_own_numbers(lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    net = Network([Block(dropout=0.5) for _ in range(LAYERS)])
    found: list[Derived] = []

    def keep(fingerprint: str, load: Any, **_: Any) -> Any:
        pair = compile_interpreted(fingerprint, load, "cpu")
        found.append(pair.graphs)
        return pair

    torch._dynamo.reset()
    torch._dynamo.optimize(make_backend(keep), nopython=True)(net)(torch.randn(2, 5, WIDTH))
    (derived,) = found
    keys, other = NodeKeys(), whole(derived)
    assert lengthenings
    for graph, expected in zip(derived.program.directions(), other.program.directions(), strict=True):
        assert contents(graph, keys) == contents(expected, keys)
    numbers = contents(derived.forward, keys)[1]
    assert len({*numbers}) == LAYERS


# -------------------------------------------------------------------- what is no repetition


def _tied() -> list[nn.Module]:
    blocks: list[Any] = [Block() for _ in range(LAYERS)]
    blocks[6].up.weight = blocks[2].up.weight
    return blocks


def _in_turn() -> list[nn.Module]:
    one, other = Block(), Block()
    return [one if k % 2 else other for k in range(LAYERS)]


def _wide() -> list[nn.Module]:
    class Wide(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.up.weight.to(torch.float64).sum().to(x.dtype)

    return [Wide() if k == 5 else Block() for k in range(LAYERS)]


def _hooked() -> list[nn.Module]:
    blocks: list[nn.Module] = [Block() for _ in range(LAYERS)]
    blocks[4].register_forward_hook(lambda module, inputs, result: 0.5 * result)
    return blocks


@pytest.mark.parametrize(
    "blocks",
    [
        lambda: [Block(eps=1e-2 if k == 5 else 1e-5) for k in range(LAYERS)],
        lambda: [Block()] * LAYERS,
        _tied,
        _in_turn,
        _wide,
        _hooked,
    ],
    ids=["one constant", "one weight for all", "a tied weight", "weights in turn", "one type", "a hook"],
)
def test_what_differs_in_one_layer_is_no_repetition(
    blocks: Callable[[], list[nn.Module]], lengthenings: list[int]
) -> None:
    torch.manual_seed(0)
    right(Network(blocks()), torch.randn(2, 5, WIDTH))
    assert not lengthenings


@pytest.mark.parametrize("layer", [0, 1, 3, LAYERS - 2])
def test_a_result_of_one_layer(layer: int) -> None:
    """Which layer it is of must not be lost."""
    torch.manual_seed(0)
    right(Network([Block() for _ in range(LAYERS)], (layer,)), torch.randn(2, 5, WIDTH))


@pytest.mark.parametrize("layer", [-1, 0, KEPT - 2, KEPT - 1, KEPT, LAYERS - 3])
def test_a_skip_connection_from_one_layer(layer: int) -> None:
    class Skipping(Network):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            x = kept = self.start(x)
            for k, block in enumerate(self.blocks):
                x = block(x)
                kept = x if k == layer else kept
            return [self.end(x + kept)]

    torch.manual_seed(0)
    tanhs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    right(Skipping(tanhs), torch.randn(3, WIDTH))


def test_results_before_the_layers(lengthenings: list[int]) -> None:
    """Of what looks like a layer, but for what it reads, and of what the first layer reads."""

    class Early(Network):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            first = self.start(x)
            second = self.blocks[0](first).clone()
            x = second * 1.5
            for block in self.blocks[1:]:
                x = block(x)
            return [self.end(x), second, first + 0]

    torch.manual_seed(0)
    tanhs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS + 1)]
    right(Early(tanhs), torch.randn(3, WIDTH))
    assert lengthenings


def test_what_the_end_looks_like(lengthenings: list[int]) -> None:
    """A last linear layer that looks like the beginning of one more layer has its own weights."""
    torch.manual_seed(0)
    net = Network([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)])
    net.end = nn.Linear(WIDTH, WIDTH)
    right(net, torch.randn(3, WIDTH))
    assert lengthenings


def test_layers_that_are_not_trained_are_others(lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    derived = right(Network([Block() for _ in range(LAYERS)]), torch.randn(2, 5, WIDTH))
    wanted = derived.imported.gradients
    assert wanted is not None and len(lengthenings) == 1
    half = tuple(k for k in wanted.inputs if k > len(derived.imported.graph.inputs) // 2)
    imported = Imported(derived.imported.graph.copy(), replace(wanted, inputs=half))
    made = derivation.derive(imported, recipes.get("cpu"))
    assert len(lengthenings) == 1
    assert {r.position for r in made.program.returned} == {*half}


# -------------------------------------------------------------------- where it cannot be


def test_what_does_not_repeat_is_derived_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UnequalLayers("for this test")

    monkeypatch.setattr(equal_layers, "lengthen", refuse)
    torch.manual_seed(0)
    derived = right(Network([Block() for _ in range(LAYERS)]), torch.randn(2, 5, WIDTH))
    assert len(derived.forward.nodes()) == len(whole(derived).forward.nodes())


def test_a_choice_is_by_the_time_of_all_layers(lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    derived = right(Network([Attending() for _ in range(LAYERS)]), torch.randn(2, 5, WIDTH), recipe="auto")
    assert lengthenings and derived.choice == whole(derived, "auto").choice


@pytest.mark.parametrize("option", [{"store": ["*linear*"]}, {"recompute": ["@elementwise"]}])
def test_a_step_may_name_layers(option: dict[str, Any], lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    derived = right(Network([Block() for _ in range(LAYERS)]), torch.randn(2, 5, WIDTH))
    lengthenings.clear()
    recipe = recipes.get("cpu").with_options("differentiate", **option)
    again = Imported(derived.imported.graph.copy(), derived.imported.gradients)
    assert derivation.derive(again, recipe).program.backward is not None
    assert not lengthenings


def test_a_step_that_is_verified_sees_all_layers(lengthenings: list[int]) -> None:
    torch.manual_seed(0)
    derived = right(Network([nn.LayerNorm(WIDTH) for _ in range(LAYERS)]), torch.randn(3, WIDTH))
    lengthenings.clear()
    derivation.derive(Imported(derived.imported.graph.copy()), recipes.get("cpu"), "structure")
    assert not lengthenings
    assert np.isfinite(derived.seconds["recipe"])
