"""Views, parts and joins against eager PyTorch."""

import pytest
import torch

from tests.capture.torch.checking import check, make_backend
from tests.capture.torch.interpreted import compile_interpreted

X = torch.arange(24.0).reshape(2, 3, 4) / 7

VIEWS = {
    "view": lambda x: x.view(6, -1),
    "view_scalar": lambda x: x[:1, :1, :1].reshape(()),
    "reshape_of_transposed": lambda x: x.transpose(0, 2).reshape(4, 6),
    "permute": lambda x: x.permute(2, -3, 1),
    "transpose_negative": lambda x: x.transpose(-1, 0),
    "t": lambda x: x[0].t(),
    "t_of_vector": lambda x: x[0, 0].t(),
    "expand": lambda x: x[:, :1].expand(5, -1, 3, 4),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "squeeze": lambda x: x[:1].unsqueeze(2).squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0),
    "squeeze_of_more": lambda x: x.squeeze(1),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2, 1)),
    "slice": lambda x: x[:, 1:],
    "slice_step": lambda x: x[:, ::2, 1::2],
    "slice_negative": lambda x: x[:, -2:, :-1],
    "slice_beyond": lambda x: x[:, 1:100, -100:2],
    "slice_empty": lambda x: x[:, 2:1],
    "select": lambda x: x[1, :, -1],
    "select_scalar": lambda x: x[1, 2, 3],
    "split": lambda x: x.split(2, dim=-1),
    "split_rest": lambda x: x.split(3, dim=2),
    "split_with_sizes": lambda x: x.split([1, 0, 3], dim=2),
    "chunk": lambda x: x.chunk(3, dim=2),
    "unbind": lambda x: x.unbind(1),
    "unbind_one": lambda x: x[:1].unbind(0),
    "unbind_none": lambda x: (x + 1, *x[:0].unbind(0)),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "narrow": lambda x: x.narrow(2, 1, 2),
    "movedim": lambda x: x.movedim(0, -1),
    "cat": lambda x: torch.cat([x, x[:, :1] * 2], 1),
    "cat_one": lambda x: torch.cat([x], -1),
    "cat_empty": lambda x: torch.cat([x.new_empty(0), x, x[:, :, :0]], 2),
    "cat_types": lambda x: torch.cat([x, torch.ones(2, 3, 1, dtype=torch.int64)], 2),
    "stack": lambda x: torch.stack([x, x * 2], -1),
    "stack_one": lambda x: torch.stack([x], 0),
    "stack_scalars": lambda x: torch.stack([x.sum(), x[0, 0, 0]]),
    "slice_negative_step": lambda x: x[:, :, -3::2],
    "flip": lambda x: x.flip(0, -1),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "roll_flat": lambda x: x.roll(5),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "repeat": lambda x: x.repeat(2, 1, 3, 1),
    "tile": lambda x: x.tile(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diagonal_below": lambda x: x.diagonal(-1, 0, 2),
    "diagonal_outside": lambda x: x.diagonal(7, 0, 2) + 1,
    "unfold": lambda x: x.unfold(2, 3, 1),
    "unfold_step": lambda x: x.unfold(1, 2, 2),
    "unfold_scalar": lambda x: x[0, 0, 0].unfold(0, 1, 1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:1, :, :1]),
    "pixel_shuffle": lambda x: torch.nn.functional.pixel_shuffle(x[:1].repeat(1, 4, 1).reshape(1, 12, 2, 2), 2),
    "pixel_unshuffle": lambda x: torch.nn.functional.pixel_unshuffle(x.reshape(1, 1, 4, 6), 2),
    "channel_shuffle": lambda x: torch.nn.functional.channel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "hstack": lambda x: torch.hstack([x, x]),
    "of_a_result": lambda x: (x * 2)[:, 1:].transpose(0, 1) + 1,
}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_views(name, dynamic):
    check(lambda x: VIEWS[name](x * 1), X, dynamic=dynamic, native=name != "stack_scalars")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["permute", "slice_step", "split_with_sizes", "unbind", "cat", "stack"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])
def test_element_types(name, dtype):
    fn = VIEWS[name]
    check(lambda x: fn(torch.cat([x, x[:1]])), (X * 7 % 3).to(dtype))


@pytest.mark.parametrize("name", ["permute", "slice", "cat", "stack", "split_rest", "flatten"])
def test_without_elements(name):
    check(lambda x: VIEWS[name](torch.cat([x, x])), torch.empty(0, 3, 4))


def test_as_strided():
    check(lambda x: x.clone().as_strided((3, 4), (2, 3), 1), X)


@pytest.mark.parametrize("perm", [(1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_as_strided_counts_in_memory(perm):
    """Overlapping windows over elements in the order in which they stand, whatever the order of the axes."""
    check(lambda x: x.as_strided((3, 4), (2, 3)), X.permute(perm))
    check(lambda x: (x * 2).permute(perm).as_strided((5, 4), (3, 2)), X)


def test_as_strided_chunks():
    """Overlapping chunks of an axis in the middle, forward and backward, as sliding attention has them."""
    check(lambda x: x.repeat(1, 4, 1).as_strided((2, 3, 6, 4), (48, 12, 4, 1)), X)


def test_as_strided_of_nothing():
    check(lambda x: ((x * 2)[:, 1, ::2].as_strided((0, 2), (1, 0)), x[:, 3:].as_strided((2, 0), (7, 1), 5) + 1), X)


def test_as_strided_by_an_offset_into_an_arguments_storage_is_refused():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="offset"):
        check(lambda x: x.as_strided((3, 4), (2, 3), 1), X)


def test_as_strided_of_unknown_memory_is_refused():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="memory"):
        check(lambda x: x.as_strided((3, 4), (1, 2)), X[:, :, ::2])


def test_a_result_is_a_view_of_what_was_changed_through_a_view() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.view(6).relu_()
        return x[1:]

    compiled = torch._dynamo.optimize(make_backend(compile_interpreted), nopython=True)(fn)
    x = torch.randn(2, 3)
    assert compiled(x)._base is x and x.min() >= 0
