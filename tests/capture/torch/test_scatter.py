"""Scatters, masks and replaced parts, against eager PyTorch."""

import pytest
import torch

from tests.capture.torch.checking import check

X = torch.cos(torch.arange(60.0) * 1.3).reshape(3, 4, 5)
S = torch.sin(torch.arange(60.0) * 0.7).reshape(3, 4, 5)
AT = torch.tensor([[[0, 2, 1, 0, 3]], [[3, 2, 3, 0, 3]]])
UNIQUE = torch.tensor([[[0, 2, 1, 0, 3]], [[3, 1, 2, 1, 0]]])
ROWS = torch.tensor([2, 0, 2])

CASES = {
    "scatter": lambda x, s: x.scatter(1, UNIQUE, s[:2, :1]),
    "scatter_value": lambda x, s: x.scatter(1, AT, 1.5),
    "scatter_scalar": lambda x, s: x[0, 0, 0].scatter(0, torch.tensor(0), s[0, 0, 0]),
    "scatter_nothing": lambda x, s: x.scatter(1, AT[:, :, :0], s[:2, :1, :0]),
    "scatter_add": lambda x, s: x.scatter_add(1, AT, s[:2, :1]),
    "scatter_add_reduce": lambda x, s: x.detach().scatter(1, AT, s.detach(), reduce="add"),
    "scatter_multiply": lambda x, s: x.detach().scatter(1, AT, s.detach(), reduce="multiply"),
    "masked_scatter": lambda x, s: x.masked_scatter(s > 0, s),
    "masked_scatter_broadcast": lambda x, s: x.masked_scatter(s[0, 0] > 0, s),
    "masked_scatter_row": lambda x, s: x[0, 0].masked_scatter(s > 0, s),
    "masked_fill": lambda x, s: x.masked_fill(s > 0, 2.5),
    "masked_fill_tensor": lambda x, s: x.masked_fill(s > 0, s[0, 0, 0]),
    "slice_scatter": lambda x, s: x.slice_scatter(s[:, 1:3], 1, 1, 3),
    "slice_scatter_step": lambda x, s: x.slice_scatter(s[:, :, :2], 2, -4, 1000, 2),
    "slice_scatter_all": lambda x, s: x.slice_scatter(s, 0),
    "select_scatter": lambda x, s: x.select_scatter(s[:, 0], 1, -1),
    "diagonal_scatter": lambda x, s: x.diagonal_scatter(s[0, :3, :4].t(), 1, 0, 2).sum(1),
    "diagonal_scatter_below": lambda x, s: x.diagonal_scatter(s[:, :3, 0], -1, 1, 2),
    "in_place": lambda x, s: _in_place(x.clone(), s),
    "scatter_part_of_source": lambda x, s: x.detach().scatter(1, UNIQUE, s.detach()),
}
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _in_place(x, s):
    x[:, 1:3] = s[:, :2]
    x[:, ::2, 1] *= s[:, ::2, 0]
    x.diagonal(0, 1, 2).add_(1)
    return x


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_scatters(name, dynamic):
    check(lambda x, s: CASES[name](x * 1, s * 1), X, S, dynamic=dynamic)


@pytest.mark.share(2)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include", [True, False])
def test_reductions(reduce, include):
    check(lambda x, s: x.scatter_reduce(1, AT, s[:2, :1], reduce, include_self=include), X, S)


@pytest.mark.share(2)
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include", [True, False])
def test_reductions_of_rows(reduce, include):
    check(lambda x, s: x.index_reduce(1, ROWS, s[:, :3], reduce, include_self=include), X, S)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_with_ties_and_zeros(reduce):
    check(lambda x, s: x.scatter_reduce(1, AT, s[:2, :1], reduce), (X * 2).round(), (S * 2).round())


@pytest.mark.share(2)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.uint8])
def test_reductions_of_types(reduce, dtype):
    check(lambda x, s: x.scatter_reduce(1, AT, s[:2, :1], reduce), (X * 9).abs().to(dtype), (S * 9).abs().to(dtype))


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["scatter", "scatter_add", "masked_scatter", "slice_scatter", "select_scatter"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float16, torch.uint8])
def test_element_types(name, dtype):
    check(CASES[name], (X * 9).abs().to(dtype), (S * 9).abs().to(dtype))


@pytest.mark.parametrize("index", [4, -1])
def test_out_of_range_is_an_error(index):
    with pytest.raises(IndexError):
        check(lambda x, s, k: x.scatter_add(1, k, s), X, S, torch.full((1, 1, 1), index))
