"""Statements that change tensors in place, directly or through views, and scopes without gradients."""

from __future__ import annotations

import torch

from tests.fuzz.drawing import FLOATS, Drawing, Impossible
from tests.fuzz.statements import sliced

VIEWS = (
    "transpose(0, -1)",
    "flatten()",
    "diagonal()",
    "unsqueeze(0)",
    "mT",
    "view(-1)",
    "movedim(0, -1)",
    "unbind(0)[0]",
    "unbind(-1)[-1]",
    "split(2, 0)[0]",
    "chunk(2, -1)[-1]",
    "squeeze()",
    "diagonal(1, 0, 1)",
    "narrow(-1, 0, 1)",
    "unfold(0, 2, 2)",
    "transpose(0, 1)[1:, ::2]",
    "view_as({0})",
    "reshape({0}.shape[0], -1)[:, ::2]",
    "permute(*range({0}.dim())[::-1])[0]",
    "tensor_split(2, 0)[1]",
    "unflatten(-1, (1, -1)).select(-1, 0)",
)


WRITES = (
    "add_({})",
    "mul_({})",
    "fill_({})",
    "copy_(torch.tensor({}))",
    "clamp_(max=0.5)",
    "zero_()",
    "neg_()",
    "tanh_()",
)


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
            f"{a}[{where}].copy_({b} * torch.ones_like({a}[{where}]))",
            f"{a}.masked_fill_({d.mask(a)}, {a}.sum().detach())",
            f"{a}[{d.mask(a)}] = {d.number()}",
            f"{a}.select({d.axis(a)}, 0).mul_({d.number()})",
            f"{a}.{d.choice(VIEWS).format(a)}.{d.choice(WRITES).format(d.number())}",
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


def whole(d: Drawing) -> str:
    """Changes of integers and of flags."""
    a = d.pick(lambda t: t.dtype not in FLOATS and _apart(t))
    t = d.tensors[a]
    if t.dtype == torch.bool:
        return d.choice((f"{a}.logical_not_()", f"{a} &= {d.mask(a)}", f"{a} ^= {d.mask(a)}", f"{a}.fill_(True)"))
    view = f"[{sliced(d, a)}]" if t.dim() and d.chance(0.5) else ""
    return d.choice(
        (
            f"{a}{view} += {d.choice((1, 3))}",
            f"{a}{view} *= 2",
            f"{a}{view} //= 2",
            f"{a}{view} = -1",
            f"{a}{view} %= 3",
            f"{a}{view} &= 6",
            f"{a}.clamp_(-2, 3)",
            f"{a}.bitwise_not_()",
            f"{a}.masked_fill_({d.mask(a)}, 5)",
            f"{a}.abs_()",
        )
    )


def metadata(d: Drawing) -> str:
    """Changes of a tensor's shape, whose memory stays."""
    a = d.floating(1, lambda t: not t.is_leaf)
    return d.choice((f"{a}.unsqueeze_(0)", f"{a}.transpose_(0, -1)", f"{a}.squeeze_()", f"{a}.swapaxes_(-1, 0)"))


def recurrence(d: Drawing) -> str:
    """A loop of Python in which each row is made of the one before."""
    a = _target(d, 1)
    if d.tensors[a].shape[0] < 2:
        raise Impossible
    step = d.choice(("{0}[i] = {0}[i - 1] * 0.5 + {0}[i]", "{0}[i] += {0}[i - 1].tanh()", "{0}[i - 1].sub_({0}[i])"))
    return f"for i in range(1, {a}.shape[0]):\n    {step.format(a)}"


def _target(d: Drawing, rank: int = 0) -> str:
    """What can be changed: no leaf that requires a gradient, and no two elements in one place."""
    return d.floating(rank, lambda t: not (t.is_leaf and t.requires_grad) and _apart(t))


def _apart(tensor: torch.Tensor) -> bool:
    return len(set(_places(tensor))) == tensor.numel()


def _places(tensor: torch.Tensor) -> list[int]:
    numbers = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    found: list[int] = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()
    return found


CHANGES = (
    (arithmetic, 3),
    (function, 3),
    (part, 6),
    (scatter, 1.5),
    (whole, 1.5),
    (metadata, 0.4),
    (recurrence, 0.7),
)


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
