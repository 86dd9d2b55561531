"""Reading and replacing at run-time positions, against eager PyTorch."""

import pytest
import torch

from tests.capture.torch.checking import check

X = torch.cos(torch.arange(120.0) * 1.3).reshape(4, 5, 6)
MASK = torch.tensor([True, False, False, True])
MASK_OF_TWO = torch.arange(20).reshape(4, 5) % 7 == 3  # of three elements
PICKS = torch.tensor([0, 3, 1, 3])
J = torch.tensor([[2, -1], [0, 2]])
K = torch.tensor([1, -6])
P = J.abs()
aten = torch.ops.aten


def setitem(x):
    x = x.clone()
    x[:, J] = 3.0
    return x


CASES = {
    "index_select": lambda x: x.index_select(1, PICKS),
    "index_select_scalar": lambda x: x[0, 0, 0].index_select(0, torch.tensor(0)),
    "embedding": lambda x: torch.nn.functional.embedding(P, x[0]),
    "embedding_padding": lambda x: torch.nn.functional.embedding(P, x[0], padding_idx=2),
    "gather": lambda x: x.gather(1, torch.ones(2, 3, 2, dtype=torch.int64)),
    "gather_scalar": lambda x: x[0, 0, 0].gather(0, torch.tensor(0)),
    "gather_nothing": lambda x: x.gather(1, torch.ones(2, 0, 2, dtype=torch.int64)),
    "take_along_dim": lambda x: x.take_along_dim(torch.tensor([[[0], [2]]]), 1),
    "one_axis": lambda x: x[:, J],
    "two_axes": lambda x: x[PICKS[:2], J],
    "inner_axes": lambda x: x[:, J, K],
    "axes_apart": lambda x: x[J, :, K],
    "new_axis": lambda x: x[None, J],
    "after_slices": lambda x: x[1:, J, ::2],
    "put_accumulating": lambda x: torch.index_put(x, (PICKS,), x[:1] * 2, True),
    "put_inner_accumulating": lambda x: aten.index_put(x, (None, J, K), x[:, :2, :2] * 2, True),
    "put_apart": lambda x: torch.index_put(x, (J, torch.tensor(1), K), x[0, 0, 0] * 2),
    "put_one_axis": lambda x: torch.index_put(x, (torch.tensor([1, 0]),), x[2:] * 2),
    "setitem": setitem,
    "masked_put": lambda x: torch.index_put(x, (x[:, :, 0] > 0,), x[0, 0, 0]),
    "masked_put_rows": lambda x: torch.index_put(x, (MASK,), x[:2] * 2),
    "masked_put_row": lambda x: torch.index_put(x, (MASK,), x[0] * 2),
    "masked_put_one_row": lambda x: torch.index_put(x, (MASK,), x[:1] * 2),
    "masked_put_elements": lambda x: torch.index_put(x, (MASK_OF_TWO,), x[0, :3] * 2, True),
    "masked_put_columns": lambda x: torch.index_put(x, (MASK,), x[:2, :, :1] * 2, True),
    "masked_put_nothing": lambda x: torch.index_put(x, (MASK & False,), x[:0] * 2),
    "take": lambda x: x.take(J),
    "put": lambda x: x.put(torch.tensor([3, -1]), x[0, 0, :2] * 2),
    "put_with_duplicates": lambda x: x.put(J, x[0, :2, :2], True),
    "index_add": lambda x: x.index_add(1, PICKS, x[:, :4], alpha=2.5),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([4, 0]), x[:, :2] * 2),
    "index_fill": lambda x: x.index_fill(2, PICKS, 1.5),
    "index_fill_tensor": lambda x: x.index_fill(-1, PICKS, x[0, 0, 0]),
}
# PyTorch finds out what their sizes must be while it traces the derivative
SPECIALISED = ("put_inner_accumulating", "put_one_axis")


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_indexing(name, dynamic):
    check(lambda x: CASES[name](x * 1), X, dynamic=dynamic and name not in SPECIALISED)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["gather", "inner_axes", "put_apart", "index_add", "embedding_padding", "take"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.float16])
def test_element_types(name, dtype):
    fn = CASES[name]
    if name == "index_add" and not dtype.is_floating_point:
        fn = lambda x: x.index_add(1, PICKS, x[:, :4])  # noqa: E731
    check(fn, (X * 7).abs().to(dtype), native=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_types_of_indices(dtype):
    check(lambda x, k: x[:, k] + torch.nn.functional.embedding(k.abs(), x[0]), X, J.to(dtype))


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_a_mask_takes_as_many_rows_as_there_are(rows):
    with pytest.raises((RuntimeError, IndexError)):
        check(lambda x: torch.index_put(x, (torch.arange(4) < 3,), x[:rows] * 2), X)


def test_frequencies_are_left_to_aten():
    check(lambda x: torch.nn.functional.embedding(P, x[0], scale_grad_by_freq=True), X, native=False)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_left_to_aten(mode):
    def fn(weight):
        return torch.nn.functional.embedding_bag(PICKS, weight, torch.tensor([0, 3]), mode=mode)

    check(fn, X[0], native=False)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, k: x.gather(1, k[None, None]),
        lambda x, k: x.index_select(1, k),
        lambda x, k: torch.nn.functional.embedding(k, x[0]),
        lambda x, k: x[:, k],
        lambda x, k: x[k, k],
    ],
)
@pytest.mark.parametrize("index", [5, -6])
def test_out_of_range_is_an_error(fn, index):
    with pytest.raises(IndexError):
        check(fn, X, torch.tensor([index]))


@pytest.mark.parametrize("fn", [lambda x, k: x.gather(1, k[None, None]), lambda x, k: x.index_select(1, k)])
def test_negative_indices_of_gather_are_errors(fn):
    with pytest.raises(IndexError):
        check(fn, X, torch.tensor([-1]))
