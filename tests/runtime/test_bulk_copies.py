"""Many tensors copied at once: each gets its own values, whatever the types, shapes and bits of the list."""

from __future__ import annotations

import pytest
import torch

from daceopt.runtime.bulk_copies import copies, write


def _many() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(7),
        torch.tensor(3),
        torch.randn(2, 3, dtype=torch.float64),
        torch.randn(5),
        torch.tensor(4),
        torch.randn(0),
        torch.tensor([True, False]),
    ]


def test_values_of_several_types_are_written() -> None:
    values = _many()
    tensors = [torch.zeros_like(v) for v in values]
    before = [t._version for t in tensors]
    write(tensors, values)
    assert all(torch.equal(t, v) for t, v in zip(tensors, values))
    assert all(t._version > v for t, v in zip(tensors, before))


def test_what_is_the_conjugate_of_its_memory_is_written() -> None:
    kept = torch.zeros(4, dtype=torch.complex64)
    value, plain = torch.randn(4, dtype=torch.complex64), torch.randn(3)
    target = torch.zeros(3)
    write([kept.conj(), target], [value, plain])
    assert torch.equal(kept, value.conj().resolve_conj()) and torch.equal(target, plain)


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("in_lists", [False, True])
def test_copies_are_their_own(count: int, in_lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as on a device, where lists are copied."""
    if in_lists:
        monkeypatch.setattr("daceopt.runtime.bulk_copies.HOST", "none")
    tensors = _many()[:count]
    made = copies(tensors)
    assert len(made) == count
    for copy, tensor in zip(made, tensors, strict=True):
        assert torch.equal(copy, tensor) and copy.dtype == tensor.dtype
        assert not copy.numel() or copy.data_ptr() != tensor.data_ptr()
