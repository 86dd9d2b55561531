"""Arrays that are stored or computed again by name."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.autodiff import Derivative, differentiate
from daceopt.autodiff.storage import Storage
from daceopt.autodiff.storage_predicates import ForwardArray
from daceopt.errors import DaceoptError
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar


def _network(depth: int = 4) -> tuple[Graph, list[str]]:
    """sin(... sin(x W0) W1 ...), each layer from a module of its own; the products."""
    graph = Graph("network")
    b = Builder(graph)
    x = graph.add_input("x", (3, 4), dace.float64)
    weights = [graph.add_input("w", (4, 4), dace.float64) for _ in range(depth)]
    products = []
    for k, w in enumerate(weights):
        with graph.label_nodes(origins=(f"layers.{k}",)):
            products.append(b.matmul(x, w))
            x = str(b.elementwise(sympy.sin, products[-1]))
    graph.add_output(x)
    return graph, products


def _gradients(graph: Graph, derivative: Derivative) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    feeds = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    done = interpret(derivative.forward, feeds)
    seeds = {g: rng.standard_normal(graph.shape(n)) for n, g in derivative.grad_outputs.items()}
    given = {n: done[n] for n in derivative.saved} | {n: feeds[n] for n in derivative.forward_inputs_needed}
    found = interpret(derivative.backward, seeds | given)
    return [found[g] for g in derivative.grad_inputs.values() if g is not None]


def _derived(graph: Graph, **storage: Any) -> Derivative:
    derivative = differentiate(graph, graph.outputs, graph.inputs, Storage(**storage))
    for part in (derivative.forward, derivative.backward):
        part.validate()
    return derivative


def test_a_product_that_is_named_is_computed_again_with_the_same_gradients() -> None:
    graph, products = _network()
    plain, again = _derived(graph), _derived(graph, recompute=(products[1],))
    assert products[1] in plain.saved and products[1] not in again.saved
    assert set(again.saved) < set(plain.saved)  # and nothing else is stored for it
    for ours, expected in zip(_gradients(graph, again), _gradients(graph, plain), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_a_module_stands_for_all_that_it_computes() -> None:
    graph, products = _network()
    assert products[1] not in _derived(graph, recompute=("layers.1",)).saved
    found = _derived(graph, recompute=("layers.[12]",)).saved
    assert products[0] in found and products[1] not in found and products[2] not in found
    assert products[1] not in _derived(graph, recompute=("layers",)).saved  # it contains them


def test_a_name_that_is_stored_is_stored_although_it_could_be_computed_again() -> None:
    graph = Graph("chain")
    b = Builder(graph)
    x = graph.add_input("x", (3, 4), dace.float64)
    y = b.elementwise(sympy.sin, x)
    graph.add_output(b.elementwise(sympy.cos, y))
    assert _derived(graph).saved == []
    assert _derived(graph, store=(y,)).saved == [y]


@pytest.mark.parametrize("option", ["store", "recompute"])
def test_an_unknown_name_is_an_error_with_the_nearest_one(option: str) -> None:
    graph, _ = _network()
    with pytest.raises(DaceoptError, match=rf"{option}='layers.O': no array .* did you mean 'layers\.\d'"):
        _derived(graph, **{option: ("layers.O",)})


def test_what_is_given_is_not_computed_again() -> None:
    graph, _ = _network()
    with pytest.raises(DaceoptError, match="recompute='x.*is given to the program"):
        _derived(graph, recompute=(graph.inputs[0],))


def test_a_predicate_chooses() -> None:
    graph, products = _network()
    sines = [graph.outputs_of(c)[0] for p in products[:-1] for c in graph.consumers(p)]
    seen: list[ForwardArray] = []

    def is_sine_of_the_first(array: ForwardArray) -> bool:
        seen.append(array)
        return array.kind == "elementwise" and array.modules == ("layers.0",)

    plain = set(_derived(graph).saved)
    assert set(products) < plain and set(sines) < plain
    assert set(_derived(graph, recompute=(is_sine_of_the_first,)).saved) == plain - {sines[0]}
    (product,) = [a for a in seen if a.name == products[0]]
    assert (product.shape, product.dtype, product.bytes, product.kind) == ((3, 4), "float64", 96, "product")
    assert not plain.intersection(sines) - set(_derived(graph, recompute=("@products",)).saved)
    assert not set(products).intersection(_derived(graph, recompute=("@products",)).saved)
    assert not set(sines).intersection(_derived(graph, recompute=("@elementwise",)).saved)
    assert _derived(graph, recompute=("@reductions",)).saved == _derived(graph).saved
    for which in ("@products", "@elementwise", is_sine_of_the_first):
        again = _derived(graph, recompute=(which,))
        for ours, expected in zip(_gradients(graph, again), _gradients(graph, _derived(graph)), strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_both_at_once_is_an_error() -> None:
    graph, products = _network()
    with pytest.raises(DaceoptError, match="is named by store and by recompute"):
        _derived(graph, store=(products[0],), recompute=("layers.0",))


def test_elements_that_are_compared_are_the_forwards_own() -> None:
    graph = Graph("maximum")
    b = Builder(graph)
    x = graph.add_input("x", (3, 4), dace.float64)
    y = b.elementwise(sympy.sin, x)
    graph.add_output(b.reduce("max", None, y, axes=(1,)))
    with pytest.raises(DaceoptError, match="are compared with their maximum"):
        _derived(graph, recompute=(y,))
    assert y in _derived(graph, recompute=("*",)).saved  # a pattern takes what can be


def test_what_is_computed_again_runs_just_before_it_is_read() -> None:
    graph, products = _network(6)
    backward = _derived(graph, recompute=tuple(products[1:5])).backward
    order = backward.nodes()
    place = {name: k for k, node in enumerate(order) for name in backward.outputs_of(node)}
    first = {n: min(order.index(c) for c in backward.all_consumers(n)) for n in products[1:5]}
    gradients = [k for k, node in enumerate(order) if "backward" in node.label]
    assert any(k < min(place[n] for n in products[1:5]) for k in gradients)  # not before the gradient has begun
    for name in products[1:5]:  # between it and its first reader stand only others that are computed again
        assert all("backward" not in order[k].label for k in range(place[name] + 1, first[name]))


def test_a_mask_that_is_drawn_again_is_the_same() -> None:
    graph = Graph("dropout")
    b = Builder(graph)
    x, w = graph.add_input("x", (3, 4), dace.float64), graph.add_input("w", (4, 4), dace.float64)
    out = graph.add_array("out", (3, 4), dace.float64)

    def drop(p: Any, v: Any, s: Any) -> Any:
        return scalar.select(scalar.ge(scalar.uniform(s, 5, 4 * p[0] + p[1]), 0.5), 2 * v, 0)

    product = b.matmul(x, w)
    reads = {"v": (product, lambda i, j: (i, j)), "s": (graph.seed(), lambda i, j: (0,))}
    b.map([3, 4], reads, {"out": (out, lambda i, j: (i, j))}, drop)
    graph.add_output(b.elementwise(sympy.tanh, b.matmul(out, w)))
    seed = {"seed": np.array([17], np.int64)}
    plain, again = _derived(graph, policy="store"), _derived(graph, recompute=("*",))
    assert out in plain.saved and out not in again.saved and again.backward.uses_seed
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(graph.shape(n)) for n in graph.inputs}
    found = []
    for derivative in (plain, again):
        seeded = {n: seed["seed"] for n in derivative.forward.arrays() if n == graph.seed()}
        done = interpret(derivative.forward, feeds | seeded)
        (g,) = derivative.grad_outputs.values()
        given = {n: done[n] for n in derivative.saved} | {n: feeds[n] for n in derivative.forward_inputs_needed}
        given |= seeded if derivative.backward.uses_seed else {}
        result = interpret(derivative.backward, {g: np.ones((3, 4)), **given})
        found.append([result[n] for n in derivative.grad_inputs.values() if n is not None])
    for ours, expected in zip(found[1], found[0], strict=True):
        np.testing.assert_array_equal(ours, expected)


# -------------------------------------------------------------------- random graphs

_UNARY = (sympy.tanh, sympy.sin, lambda v: 0.5 * v, lambda v: scalar.maximum(v, 0))
_STEP = st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(0, 99))


def _random(steps: list[tuple[int, int, int]]) -> Graph:
    """A graph of element-wise functions, sums, products and reductions that are spread again."""
    graph = Graph("random")
    b = Builder(graph)
    values = [graph.add_input("x", (3, 3), dace.float64) for _ in range(2)]
    for kind, left, right in steps:
        x, y = values[left % len(values)], values[right % len(values)]
        if kind == 0:
            values.append(b.elementwise(_UNARY[right % len(_UNARY)], x))
        elif kind == 1:
            values.append(b.elementwise(lambda u, v: u * v + u, x, y))
        elif kind == 2:
            values.append(b.matmul(x, y))
        else:
            row = b.reduce("sum", None, x, axes=(1,), keepdims=True)
            values.append(b.elementwise(lambda u, v: u - sympy.tanh(v), y, row))
    graph.add_output(b.elementwise(lambda u: 2 * u, values[-1]))
    return graph


@settings(max_examples=15)
@given(st.lists(_STEP, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_every_choice_gives_the_same_gradients(steps: list[tuple[int, int, int]], choice: Any) -> None:
    graph = _random(steps)
    made = [n for n in graph.arrays() if graph.producers(n) and n not in graph.outputs]
    again = tuple(n for n in made if choice.random() < 0.5)
    expected = _gradients(graph, _derived(graph, policy="store"))
    derivative = _derived(graph, policy="store", recompute=again, store=tuple(n for n in made if n not in again))
    assert not set(again).intersection(derivative.saved)
    for ours, theirs in zip(_gradients(graph, derivative), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=10)
@given(st.lists(_STEP, min_size=2, max_size=9), st.floats(0, 1))
def test_every_budget_gives_the_same_gradients(steps: list[tuple[int, int, int]], share: float) -> None:
    graph = _random(steps)
    plain = _derived(graph, policy="store")
    budget = int(share * 72 * 12 + 1)
    derivative = _derived(graph, policy="store", budget=budget, by="greedy")
    assert "asked for" in derivative.decision
    for ours, theirs in zip(_gradients(graph, derivative), _gradients(graph, plain), strict=True):
        np.testing.assert_array_equal(ours, theirs)
