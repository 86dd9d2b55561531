"""Views, parts and joins against eager PyTorch."""

import pytest
import torch

from tests.capture.torch.checking import check

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
    "of_a_result": lambda x: (x * 2)[:, 1:].transpose(0, 1) + 1,
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_views(name, dynamic):
    check(lambda x: VIEWS[name](x * 1), X, dynamic=dynamic, native=name != "stack_scalars")


@pytest.mark.parametrize("name", ["permute", "slice_step", "split_with_sizes", "unbind", "cat", "stack"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])
def test_element_types(name, dtype):
    fn = VIEWS[name]
    check(lambda x: fn(torch.cat([x, x[:1]])), (X * 7 % 3).to(dtype))


@pytest.mark.parametrize("name", ["permute", "slice", "cat", "stack", "split_rest", "flatten"])
def test_without_elements(name):
    check(lambda x: VIEWS[name](torch.cat([x, x])), torch.empty(0, 3, 4))
