"""Statements that change tensors in place, directly or through views, and scopes without gradients."""

from __future__ import annotations

import torch

from tests.fuzz.drawing import Drawing
from tests.fuzz.statements import sliced

VIEWS = ("transpose(0, -1)", "flatten()", "diagonal()", "unsqueeze(0)", "mT", "view(-1)")


def arithmetic(d: Drawing) -> str:
    a = _target(d)
    b = d.operand(a, same=True)
    return d.choice(
        (
            f"{a}.add_({b})",
            f"{a}.mul_({b})",
            f"{a} += {b}",
            f"{a} *= {b}",
            f"{a}.sub_({b}, alpha=2)",
            f"{a} -= {b}",
            f"{a}.copy_({b} * torch.ones_like({a}))",
            f"{a}.lerp_({b} * torch.ones_like({a}), 0.25)",
        )
    )


def function(d: Drawing) -> str:
    a = _target(d)
    return d.choice(
        (
            f"{a}.relu_()",
            f"{a}.tanh_()",
            f"{a}.sigmoid_()",
            f"{a}.zero_()",
            f"{a}.fill_({d.number()})",
            f"{a}.neg_()",
            f"{a}.clamp_(-1, 1)",
            f"{a}.masked_fill_({d.mask(a)}, {d.number()})",
            f"F.relu({a}, inplace=True)",
            f"{a}.exp_()",
            f"{a}.abs_()",
            f"F.leaky_relu_({a}, 0.2)",
            f"{a}.mul_({d.number()}).add_({d.number()})",
        )
    )


def part(d: Drawing) -> str:
    a = _target(d, 1)
    where = sliced(d, a)
    b = d.number() if d.chance(0.4) else f"{a}[{where}] * {d.number()}" if d.chance(0.4) else d.operand(a, same=True)
    return d.choice(
        (
            f"{a}[{where}] = {b}",
            f"{a}[{where}] += {b}",
            f"{a}[{where}] *= {b}",
            f"{a}[{where}].{d.choice(('add_', 'mul_'))}({b})",
            f"{a}[{d.mask(a)}] = {d.number()}",
            f"{a}.select({d.axis(a)}, 0).mul_({d.number()})",
            f"{a}.{d.choice(VIEWS)}.add_({d.number()})",
        )
    )


def scatter(d: Drawing) -> str:
    a = _target(d, 1)
    t, k = d.tensors[a], d.axis(a)
    size = t.shape[k]
    index, lines = d.indices(*t.shape, below=size), d.indices(size, below=size)
    source = d.parameter(*t.shape, dtype=t.dtype)
    row = d.parameter(*t.shape[1:], dtype=t.dtype)
    first = d.indices(2, below=t.shape[0])
    return d.choice(
        (
            f"{a}.scatter_add_({k}, {index}, {source})",
            f"{a}.index_add_({k}, {lines}, {source})",
            f"{a}.index_put_(({first},), {row}, accumulate=True)",
            f"{a}[{first}] = {d.number()}",
            f"{a}[{first}] += {row}",
            f"{a}.index_fill_({k}, {lines}, {d.number()})",
            f"{a}.scatter_({k}, {index}, {d.number()})",
        )
    )


def _target(d: Drawing, rank: int = 0) -> str:
    """What can be changed: no leaf that requires a gradient, and no two elements in one place."""
    return d.floating(rank, lambda t: not (t.is_leaf and t.requires_grad) and _apart(t))


def _apart(tensor: torch.Tensor) -> bool:
    return len(set(_places(tensor))) == tensor.numel()


def _places(tensor: torch.Tensor) -> list[int]:
    numbers = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    found: list[int] = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()
    return found


CHANGES = ((arithmetic, 3), (function, 3), (part, 5), (scatter, 1.5))


def buffer(d: Drawing) -> str:
    """A buffer that the call updates."""
    a = d.floating(0, lambda t: t.numel() > 0)
    name = f"b{d.seed()}"
    d.setup.append(f'self.register_buffer("{name}", torch.zeros((), dtype=torch.float32))')
    update = d.choice(("mul_(0.9).add_({})", "add_({})", "copy_({})"))
    return f"self.{name}.{update.format(f'{a}.detach().mean().to(torch.float32)')}"


def assigned(d: Drawing) -> str:
    """A buffer that the call replaces."""
    a = d.floating(0)
    name = f"b{d.seed()}"
    shape = "".join(f"{n}, " for n in d.tensors[a].shape)
    d.setup.append(f'self.register_buffer("{name}", torch.zeros(({shape}), dtype={d.tensors[a].dtype}))')
    return f"self.{name} = self.{name} + {a}.detach()" if d.chance(0.5) else f"self.{name}.add_({a}.detach())"


WITHOUT_NAME = ((buffer, 1), (assigned, 0.5))
