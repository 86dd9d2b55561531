"""Which arguments have a gradient of zero, and which have none at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn import functional

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

X, Y, SIGNS = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([1.0, -1.0, 1.0, -1.0])


def test_targets_that_a_loss_only_compares_have_no_gradient() -> None:
    check(lambda x, y, t: functional.cosine_embedding_loss(x, y, t, margin=0.3), X, Y, SIGNS)
    check(lambda x, t: functional.hinge_embedding_loss(x.sum(1).exp(), t, reduction="none"), X, SIGNS)


def test_what_reads_such_a_target_elsewhere_has_one() -> None:
    check(lambda x, t: functional.hinge_embedding_loss(x.sum(1), t) + 0 * t.sign().sum(), X, SIGNS)
    check(lambda x, t: (functional.hinge_embedding_loss(x.sum(1), t), torch.floor(t)), X, SIGNS)


@pytest.mark.parametrize("shape", [(0, 0), (5, 5)])
def test_formulas_that_give_nothing_for_what_has_no_elements(shape: tuple[int, int]) -> None:
    check(torch.linalg.householder_product, torch.ones(shape), torch.ones(0), native=False)


def test_steps_have_a_gradient_of_zero() -> None:
    check(lambda x, y: torch.floor(x) + y * 2, X, Y)
    check(lambda x, y: torch.where(x > 0, y, y.round()), X, Y)


def test_operands_written_in_place() -> None:
    check(lambda x, t: functional.hinge_embedding_loss(x.sum(1).mul_(t.round()), t), X, SIGNS)


def test_a_count_of_what_is_not_zero_requires_a_gradient_and_has_none() -> None:
    check(lambda x: x.norm(0), X)
    check(lambda x: torch.linalg.vector_norm(x, 0, dim=1), X)
    check(lambda x, y: x.norm(0) + y.floor().sum(), X, Y)


def test_one_of_several_results_depends_on_its_own_operands() -> None:
    check(lambda x, y: torch.meshgrid(x[0], y[0].exp(), indexing="ij")[0] * 2, X, Y)
    check(lambda x, y: (x.sin(), torch.meshgrid(x[0], y[0], indexing="xy")[1]), X, Y)
    check(lambda x, y: torch.broadcast_tensors(x, y[:1])[0] + 1, X, Y)


def test_the_operand_that_gives_its_type_has_no_gradient_although_another_result_depends_on_it() -> None:
    def values_and_weights(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = y * 2
        return values, x.softmax(1).type_as(values)

    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(values_and_weights)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    assert torch.autograd.grad(compiled(x, y)[1].square().sum(), [x, y], allow_unused=True)[1] is None


def test_what_has_no_elements_does_not_speak_for_what_has_some() -> None:
    def products(
        empty: torch.Tensor, none: torch.Tensor, x: torch.Tensor, t: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.linalg.householder_product(empty, none), torch.linalg.householder_product(x, t), x * 2

    arguments = [torch.ones(0, 0), torch.ones(0), torch.randn(5, 5), torch.randn(5)]
    leaves = [a.requires_grad_() for a in arguments]
    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(products)
    (gradient,) = torch.autograd.grad(compiled(*leaves)[1].sum(), leaves[2], allow_unused=True)
    (expected,) = torch.autograd.grad(products(*leaves)[1].sum(), leaves[2])
    torch.testing.assert_close(gradient, expected)


def test_outputs_that_are_computed_from_another_one() -> None:
    def later(model: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> dict[int, frozenset[int]]:
        backend = make_backend(compile_interpreted)
        torch._dynamo.optimize(backend, nopython=True)(model)(X.clone().requires_grad_())
        (piece,) = backend.graphs
        return dict(piece.program.boundary.later)

    def written(x: torch.Tensor) -> Sequence[torch.Tensor]:
        y = x * 2
        loss = y.sum()
        return loss, y.add_(x)

    assert later(lambda x: (y := x.exp(), y.sum(), y.detach().sum() + x.sum())) == {0: {1}, 1: set(), 2: set()}
    assert later(lambda x: (y := x.exp(), z := y * 2, z.type_as(y) + 1)) == {0: {1, 2}, 1: {2}, 2: set()}
    assert later(written) == {0: set()}
