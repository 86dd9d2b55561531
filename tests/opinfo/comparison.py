"""Our outcome beside eager PyTorch's, and eager's in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.numerics import assert_within_rounding
from tests.opinfo.outcome import Outcome

ENOUGH = 30  # numbers, to speak of their mean
DEVIATIONS = 8.0
FACTOR, ULPS = 4.0, 8.0  # as in ``assert_within_rounding``


def compare(
    ours: Outcome,
    eager: Outcome,
    exact: Outcome,
    *,
    by_chance: bool = False,
    single: Callable[[], tuple[Outcome, Outcome]] | None = None,
    shaken: Callable[[], Sequence[Outcome]] = tuple,
) -> None:
    """Raise AssertionError with what differs. ``by_chance``: the values may differ as random ones do.

    ``single``: eager's outcome of the call in float32, and of those numbers in float64. It tells how large eager's own
    error in float64 is, of which there is no better reference. ``shaken``: eager's outcomes by other cotangents, all in
    their last place. Gradients are linear in these: what they change is what rounding may, where terms cancel.
    """
    missing = {n: False for n in (*ours.values, *eager.values) if n.startswith("second")}  # no gradient is a zero one
    mine, expected = {**missing, **ours.values}, {**missing, **eager.values}
    assert mine.keys() == expected.keys(), f"{list(mine)}, expected {list(expected)}"
    for what, theirs in expected.items():
        found = mine[what]
        if what.startswith("second") and not (isinstance(theirs, torch.Tensor) and isinstance(found, torch.Tensor)):
            found, theirs = _zeros(found, theirs), _zeros(theirs, found)  # absent or zero, which differs in formulas
        if not isinstance(theirs, torch.Tensor):
            same = type(found) is type(theirs) and (by_chance or found == theirs or found != found)
            assert same, f"{what}: {_short(found)}, expected {_short(theirs)}"
            continue
        _same_kind(what, found, theirs)
        if by_chance:
            _same_mean(what, found, theirs)
        else:
            own = exact.values.get(what)
            try:
                _same_values(what, found, theirs, own)
            except AssertionError:
                if what.startswith("second") and _is_rounding(found, theirs, expected):
                    continue
                if what.startswith("gradient") and _is_within(found, theirs, [s.values[what] for s in shaken()]):
                    continue
                if single is None or theirs.dtype != torch.float64:
                    raise
                _same_values(what, found, theirs, own, _error(what, *single()))


def _is_rounding(ours: torch.Tensor, theirs: torch.Tensor, eager: dict[str, Any]) -> bool:
    """Is a second gradient zero but for the rounding of first gradients that cancel in it?"""
    first = [t.detach().abs().max() for n, t in eager.items() if n.startswith("gradient") and _has_numbers(t)]
    if not first or not theirs.is_floating_point():
        return False
    least = ULPS * torch.finfo(theirs.dtype).eps * float(max(first))
    return all(float(t.detach().abs().max()) <= least for t in (ours, theirs) if t.numel())


def _is_within(ours: torch.Tensor, theirs: torch.Tensor, shaken: Sequence[torch.Tensor]) -> bool:
    """Is our gradient, of float64, within what changes in the last place of the cotangents make of eager's?"""
    if not shaken or theirs.dtype != torch.float64:
        return False
    ours, theirs = ours.detach(), theirs.detach()
    spread = torch.stack([(s.detach() - theirs).abs() for s in shaken]).amax(0)
    return bool((((ours - theirs).abs() <= FACTOR * spread) | (ours == theirs)).all())


def _has_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > 0


def differ(a: Outcome, b: Outcome) -> bool:
    """Do two runs of the same give different values?"""
    pairs = zip(a.values.values(), b.values.values())
    return any(isinstance(x, torch.Tensor) and not _equal(x, y) for x, y in pairs)


def _same_kind(what: str, ours: Any, theirs: torch.Tensor) -> None:
    assert isinstance(ours, torch.Tensor), f"{what}: {_short(ours)}, expected a tensor"
    graphs = what.startswith(("result", "buffer"))  # a gradient's own graph depends on how a formula is written
    kinds = [(str(t.dtype), tuple(t.shape), t.requires_grad if graphs else None) for t in (ours, theirs)]
    assert kinds[0] == kinds[1], f"{what}: {kinds[0]}, expected {kinds[1]}"
    assert ours.layout == theirs.layout, f"{what}: layout {ours.layout}, expected {theirs.layout}"
    if what.startswith("result") and theirs.layout is torch.strided:
        strides = [_strides(t) for t in (ours, theirs)]
        assert strides[0] == strides[1], f"{what}: strides {ours.stride()}, expected {theirs.stride()}"


def _zeros(value: Any, like: Any) -> Any:
    return torch.zeros_like(like) if value is False and isinstance(like, torch.Tensor) else value


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those that say where elements are: not of axes of one element, nor of empty tensors."""
    return () if not tensor.numel() else tuple(s for n, s in zip(tensor.shape, tensor.stride()) if n != 1)


def _same_mean(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    a, b = (numbers(t).astype(np.float64) for t in (ours, theirs))
    if not what.startswith("result") or a.size < ENOUGH or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return
    spread = max(a.std(), b.std()) / np.sqrt(a.size)
    assert abs(a.mean() - b.mean()) <= DEVIATIONS * spread, f"{what}: mean {a.mean()}, expected {b.mean()}"


def _error(what: str, narrow: Outcome, exact: Outcome) -> float:
    """Of float32 relative to the largest number, in units of its last place."""
    a, b = (numbers(o.values[what]).astype(np.float64) for o in (narrow, exact))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = np.abs(b[finite]).max(initial=0.0)
    return float(np.abs(a - b)[finite].max(initial=0.0) / largest / np.finfo(np.float32).eps) if largest else 0.0


def _same_values(what: str, ours: torch.Tensor, theirs: torch.Tensor, exact: Any, units: float = 0.0) -> None:
    if _equal(ours, theirs):
        return  # eager PyTorch is what is to be matched, whatever float64 says (signs of eigenvectors)
    a, b = numbers(ours), numbers(theirs)
    if a.dtype.kind in "biu" or not isinstance(exact, torch.Tensor) or exact.shape != theirs.shape:
        reference = b
    else:
        reference = numbers(exact)
    if a.dtype.kind not in "biu":
        reference = _in_range(reference.astype(np.float64), b.astype(np.float64))
    try:
        assert_within_rounding(a, reference, b, ulps=ULPS + FACTOR * units)
    except AssertionError as error:
        text = " ".join(str(error).split())
        raise AssertionError(
            f"{what}: {text[:300]} | ours {_short(a)} | eager {_short(b)} | float64 {_short(reference)}"
        ) from None


def _in_range(exact: np.ndarray, eager: np.ndarray) -> np.ndarray:
    """Where eager PyTorch leaves its type's range and float64 does not, eager's value counts."""
    left = np.isfinite(exact) != np.isfinite(eager)
    return np.where(left, eager, exact)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    x, y = numbers(a), numbers(b)
    return x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all())


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """Elements, complex ones as pairs."""
    found = tensor.detach().resolve_conj().resolve_neg()
    found = torch.zeros(found.shape, dtype=found.dtype) if found._is_zerotensor() else found
    found = found.to_dense() if found.layout is not torch.strided else found
    found = torch.view_as_real(found) if found.is_complex() else found
    if found.dtype == torch.bfloat16:
        import ml_dtypes

        return found.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return found.numpy()


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 6:
        value = value.ravel()[:6]
    return " ".join(str(value).split())[:160]
