"""Statements that compute new tensors, by family. Each function takes a ``Drawing`` and gives an expression."""

from __future__ import annotations

import torch

from tests.fuzz.drawing import FLOATS, INTEGERS, Drawing, Impossible

UNARY = (
    "torch.tanh({})",
    "torch.sin({})",
    "{}.abs()",
    "-{}",
    "torch.relu({})",
    "F.gelu({})",
    "F.silu({})",
    "{}.sigmoid()",
    "F.softplus({})",
    "torch.exp({} * 0.25)",
    "({}.abs() + 0.5).log()",
    "({}.abs() + 0.25).sqrt()",
    "F.leaky_relu({}, 0.1)",
    "F.elu({})",
    "{}.square()",
    "torch.erf({})",
    "torch.atan({})",
    "({}.abs() + 1).reciprocal()",
    "F.hardtanh({})",
    "({} * {} + 1).rsqrt()",
    "F.hardswish({})",
    "{}.clone()",
    "torch.expm1({} * 0.1)",
    "torch.log1p({}.abs())",
    "F.gelu({}, approximate='tanh')",
    "F.logsigmoid({})",
    "F.mish({})",
    "torch.cos({}) + 1",
    "F.threshold({}, 0.1, 0.5)",
    "F.dropout({}, 0.5, training=False)",
    "torch.nan_to_num({})",
    "{}.sign()",
    "{}.floor()",
    "torch.zeros_like({})",
    "{}.detach()",
    "F.relu6({})",
    "F.softshrink({})",
    "F.glu(torch.cat([{}, {}], -1))",
    "torch.full_like({}, 0.5)",
)
BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / ({} * 0.1 + 3).abs().clamp(1)",
    "torch.add({}, {}, alpha=2)",
    "torch.rsub({}, {})",
    "{} ** 2 + {}",
    "torch.lerp({0}, {1} * torch.ones_like({0}), 0.3)",
)
TWO_TENSORS = (
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.hypot({} + 2, {})",
    "torch.atan2({}, {}.abs() + 1)",
    "torch.fmod({}, {}.abs() + 1)",
    "torch.logaddexp({} * 1.0, {} * 1.0)",
    "torch.where({0} > {1}, {0}, {1} * 2)",
    "F.mse_loss({0} + 0 * {1}, {1} + 0 * {0})",
    "torch.copysign({} * 1.0, {})",
    "F.smooth_l1_loss({0} + 0 * {1}, {1} + 0 * {0}, reduction='none')",
)
COMPARISONS = ("{} > {}", "{} <= {}", "{} == {}", "torch.ne({}, {})", "{}.ge({})")


def unary(d: Drawing) -> str:
    name = d.floating()
    return d.choice(UNARY).replace("{}", name)


def binary(d: Drawing) -> str:
    a = d.pick(lambda t: t.dtype != torch.bool)
    b = d.operand(a)
    return d.choice(BINARY).format(*((a, b) if d.chance(0.8) or not b.isidentifier() else (b, a)))


def two_tensors(d: Drawing) -> str:
    a = d.floating()
    b = d.operand(a)
    if not b.replace("self.", "").isidentifier():
        raise Impossible
    return d.choice(TWO_TENSORS).format(a, b)


def comparison(d: Drawing) -> str:
    a = d.pick(lambda t: t.dtype != torch.bool)
    return d.choice(COMPARISONS).format(a, d.operand(a))


def logic(d: Drawing) -> str:
    a = d.pick(lambda t: t.dtype == torch.bool)
    return d.choice((f"~{a}", f"{a} & {d.mask(a)}", f"{a} ^ {d.mask(a)}", f"{a}.logical_not()", f"{a} * 2"))


def integers(d: Drawing) -> str:
    a = d.pick(lambda t: t.dtype in INTEGERS)
    texts = (
        "{} // 2",
        "{} % 3",
        "{} * {}",
        "{}.abs()",
        "{} & 3",
        "{} << 1",
        "{}.clamp(-2, 2)",
        "-{}",
        "{} / 2",
        "{}.bitwise_not()",
        "{} >> 1",
        "{} | 5",
        "torch.div({}, 2, rounding_mode='trunc')",
        "torch.remainder({}, -3)",
        "torch.fmod({}, 3)",
        "torch.bitwise_xor({}, {} + 1)",
        "{}.sign()",
        "{} ** 2",
        "torch.where({} > 0, {}, -1)",
        "{}.square()",
        "torch.gcd({}, {} + 2)",
        "{}.sqrt()" if d.chance(0.1) else "({} & 7).to(torch.float32).sqrt()",
    )
    return d.choice(texts).replace("{}", a)


def cast(d: Drawing) -> str:
    name = d.pick()
    if d.tensors[name].dtype in FLOATS and d.chance(0.3):
        return f"({name} * 4).to({d.choice(INTEGERS[:4])})"
    kinds = (*FLOATS, torch.bool, *(INTEGERS if d.tensors[name].dtype not in FLOATS else INTEGERS[:1]))
    return f"{name}.to({d.choice(kinds)})"


def choose(d: Drawing) -> str:
    a = d.floating()
    b = d.operand(a)
    return d.choice(
        (
            f"torch.where({d.mask(a)}, {a}, {b})",
            f"{a}.masked_fill({d.mask(a)}, {d.number()})",
            f"{a}.clamp(-0.5, 1.5)",
            f"{a}.clamp(min=-0.7)",
            f"torch.clamp({a}, max=0.9)",
            f"torch.addcmul({a}, {a}, {a}, value=0.5)",
            f"torch.where({d.mask(a)}, {d.number()}, {a})",
            f"{a}.masked_fill({d.mask(a)}, torch.tensor({d.number()}, dtype={d.tensors[a].dtype}))",
            f"{a}.clamp({a}.mean(), {a}.amax() + 1)" if d.tensors[a].numel() else f"{a} + 1",
            f"{a}.masked_scatter({d.mask(a)}, {a}.flip(0) * 2)" if d.tensors[a].dim() else f"{a} * 2",
            f"torch.addcdiv({a}, {a}, {a}.abs() + 1, value=-0.5)",
        )
    )


def view(d: Drawing) -> str:
    a = d.pick(lambda t: t.dim() >= 1)
    t, k = d.tensors[a], d.axis(a)
    n = t.shape[k]
    order = list(range(t.dim()))
    d.rng.shuffle(order)
    return d.choice(
        (
            lambda: f"{a}.permute({', '.join(map(str, order))})",
            lambda: f"{a}.transpose({k}, {d.axis(a)})",
            lambda: f"{a}[{sliced(d, a)}]",
            lambda: f"{a}.select({k}, {_inside(d, n)})",
            lambda: f"{a}.unsqueeze({d.rng.randint(-t.dim() - 1, t.dim())})",
            lambda: f"{a}.flip({d.axes(a)})",
            lambda: f"{a}.flatten()" if d.chance(0.5) else f"{a}.reshape({', '.join(map(str, _regrouped(d, t)))})",
            lambda: f"{a}.view({', '.join(map(str, _regrouped(d, t)))})",
            lambda: f"{a}.expand({', '.join(map(str, _expanded(d, t)))})",
            lambda: f"{a}.unbind({k})[{_inside(d, n)}]",
            lambda: f"{a}.split({d.choice((1, 2, 3))}, {k})[{d.choice((0, 0, 1, -1))}]",
            lambda: f"{a}.chunk({d.choice((2, 3))}, {k})[{d.choice((0, 0, -1))}]",
            lambda: f"{a}.narrow({k}, {min(1, n - 1)}, {max(1, n - 1)})",
            lambda: f"{a}.diagonal({d.choice(('0, -2, -1', '1, 0, 1', '-1, -1, -2'))})",
            lambda: f"{a}.unfold({k}, {d.choice((1, 2, 3))}, {d.choice((1, 2))})",
            lambda: f"{a}.squeeze()" if d.chance(0.5) else f"{a}.movedim(0, -1)",
            lambda: f"{a}.roll({d.choice((1, -2))}, {k})",
            lambda: f"torch.tril({a})" if d.chance(0.5) else f"{a}.contiguous()",
            lambda: f"{a}.repeat_interleave(2, {k})" if d.chance(0.5) else f"{a}.mT",
            lambda: f"{a}.tensor_split({d.choice((2, 3))}, {k})[{d.choice((0, 1, -1))}]",
            lambda: f"{a}.unflatten({k}, ({n}, 1))" if d.chance(0.5) else f"{a}.swapaxes(0, -1)[..., ::2]",
            lambda: f"{a}.repeat({', '.join(str(d.choice((1, 2))) for _ in range(t.dim() + d.chance(0.3)))})",
            lambda: f"{a}.unsqueeze(0).expand(2, *{a}.shape)[:, ::2]",
            lambda: f"{a}.rot90(1, (0, {d.choice((1, -1))}))" if t.dim() > 1 else f"{a}.broadcast_to(2, {n})",
            lambda: f"{a}.diag_embed()" if t.dim() < 4 and d.chance(0.5) else f"{a}.transpose(0, -1).ravel()",
            lambda: f"{a}.as_strided(({n}, 2), (1, 0))" if t.dim() == 1 else f"{a}.movedim((0, 1), (-1, 0))",
            lambda: f"{a}.view_as({a})" if d.chance(0.3) else f"{a}.triu(1)",
        )
    )()


def sliced(d: Drawing, name: str) -> str:
    """What stands between brackets: slices with steps, positions, None, and an ellipsis."""
    parts = []
    for n in d.tensors[name].shape:
        options = [":", ":", "::2", "1:", ":-1", "1::2", f"{n // 2}:", ":1", "None, :"]
        parts.append(d.choice([*options, *([str(_inside(d, n))] * 2 if n else [])]))
    if len(parts) > 1 and d.chance(0.3):
        cut = d.rng.randrange(len(parts))
        parts[cut] = "..."
    return ", ".join(parts) or "..."


def _inside(d: Drawing, size: int) -> int:
    if not size:
        raise Impossible
    return d.rng.randrange(-size, size)


def _regrouped(d: Drawing, tensor: torch.Tensor) -> list[int]:
    """The same elements with neighbouring axes merged, or one split."""
    shape = list(tensor.shape)
    if len(shape) > 1 and d.chance(0.6):
        k = d.rng.randrange(len(shape) - 1)
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
        return shape
    k = d.rng.randrange(len(shape))
    factor = next((f for f in (2, 3, 5) if shape[k] % f == 0 and shape[k]), 1)
    shape[k : k + 1] = [shape[k] // factor, factor]
    return shape


def _expanded(d: Drawing, tensor: torch.Tensor) -> list[int]:
    wider = [d.choice((2, 3)) if n == 1 else d.choice((n, -1)) for n in tensor.shape]
    return [d.choice((2, 3)), *wider] if d.chance(0.4) else wider


def join(d: Drawing) -> str:
    a = d.pick(lambda t: t.dim() >= 1)
    t, k = d.tensors[a], d.axis(a)
    k %= t.dim()
    rest = [n for i, n in enumerate(t.shape) if i != k]
    b = d.pick(lambda u: u.dim() == t.dim() and [n for i, n in enumerate(u.shape) if i != k] == rest)
    same = d.pick(lambda u: u.shape == t.shape)
    return d.choice(
        (
            f"torch.cat([{a}, {b}], {k})",
            f"torch.cat([{b}, {a}, {a}], {k})",
            f"torch.stack([{a}, {same}], {k})",
            f"torch.stack([{same}, {a}], -1)",
            f"torch.cat([{a}.narrow({k}, 0, 0), {b}], {k})",
            f"torch.cat([{a}, {b}.to(torch.float32)], {k})",
            f"torch.hstack([{a}, {same}])",
            f"torch.cat([p * (i + 1) for i, p in enumerate({a}.split(2, {k}))], {k})",
            f"torch.stack([p for p in {a}.unbind({k})][::-1], {k})",
            f"sum({a}.unbind({k}))",
        )
    )


def padded(d: Drawing) -> str:
    a = d.floating(1)
    rank = d.tensors[a].dim()
    if d.chance(0.5) or rank < 2:
        pads = [d.choice((0, 1, 2, -1)) for _ in range(2 * d.rng.randint(1, min(rank, 2)))]
        return f"F.pad({a}, {pads}, value={d.number()})"
    pads = [d.choice((0, 1, 2)) for _ in range(2 * (rank - 2 if rank > 2 else 1))]
    return f"F.pad({a}, {pads}, mode={d.choice(('reflect', 'replicate', 'circular'))!r})"


def reduction(d: Drawing) -> str:
    a = d.floating()
    if d.chance(0.2) or not d.tensors[a].dim():
        return f"{a}.{d.choice(('sum', 'mean', 'amax', 'prod', 'max', 'min', 'std', 'norm'))}()"
    keep = d.flag()
    if d.chance(0.4):
        one = d.choice(("sum", "prod", "mean", "logsumexp", "amin", "cumsum", "argmax", "argmin"))
        more = "" if one == "cumsum" else f", keepdim={keep}"
        return f"{a}.{one}({d.axis(a)}{more})"
    if d.chance(0.3):
        kind, part = d.choice(("max", "min", "median")), d.choice(("values", "values", "indices"))
        return f"{a}.{kind}({d.axis(a)}, keepdim={keep}).{part}"
    several = d.choice(("sum", "mean", "amax", "amin", "logsumexp", "var", "std"))
    return f"{a}.{several}({d.axes(a)}, keepdim={keep})"


def count(d: Drawing) -> str:
    a = d.pick(lambda t: t.dtype not in FLOATS and t.dim() >= 1)
    k, keep = d.axis(a), d.flag()
    if d.tensors[a].dtype != torch.bool and d.chance(0.5):
        one = d.choice(("amax", "amin", "prod", "sum", "argmax", "any"))
        return f"{a}.{one}({k}, keepdim={keep})"
    if d.chance(0.4):
        return f"{a}.{d.choice(('sum', 'prod', 'cumsum', 'mean'))}({k}, dtype={d.choice((*FLOATS[:3], torch.int32))})"
    return f"{a}.{d.choice(('any', 'all', 'sum', 'cumsum', 'count_nonzero'))}({k})"


def hollow(d: Drawing) -> str:
    """Reductions of axes without elements, and results without any."""
    a = d.pick(lambda t: t.dim() >= 1)
    k, keep = d.axis(a), d.flag()
    none = f"{a}.narrow({k}, 0, 0)"
    return d.choice(
        (
            f"{none}.sum({k}, keepdim={keep})",
            f"{none}.prod({k}, keepdim={keep})",
            f"{none}.any({k}, keepdim={keep})",
            f"{none}.all({k})",
            f"{none}.cumsum({k})",
            f"torch.cat([{none}, {a} + 1, {none}], {k})",
            f"{none}.sum() + {a}",
            f"{none}.flatten()",
            f"{a}[:0] * 2",
        )
    )


def scalars(d: Drawing) -> str:
    """Numbers of Python and tensors of one element, which take part in the types of results in their own way."""
    a = d.pick(lambda t: t.dim() >= 1)
    k, number = d.axis(a), d.choice(("2", "0.5", "True", "-1", "3.0"))
    one = d.choice(("2.5", "2", "True", "0.25, dtype=torch.float64", "3, dtype=torch.int32"))
    return d.choice(
        (
            f"{a} * {a}.shape[{k}]",
            f"{a} / max(1, {a}.numel())",
            f"{a} * ({a}.size({k}) ** 0.5)",
            f"{a} * {number}",
            f"{number} - {a} * 1",
            f"{number} / ({a}.abs() * 1 + 1)",
            f"{a} * torch.tensor({one})",
            f"torch.tensor({one}) + {a}.abs()",
            f"{a} + torch.arange({a}.shape[-1])",
            f"{a} * torch.linspace(-1, 1, {a}.shape[-1])",
            f"{a} + torch.full(({a}.shape[-1],), {number})",
            f"{a} * (1 if {a}.shape[0] > 2 else -1)",
            f"{a} + ({a}.dim() if {a}.is_floating_point() else 1)",
            f"{a} > {number}",
            f"torch.full_like({a}, {a}.shape[0] / 2)",
            f"{a}.new_full({a}.shape, 2) + {a}",
            f"{a}.new_ones({a}.shape[{k}]) * {a}.shape[{k}]",
            f"torch.where({a} > 0, 1, 0)",
            f"torch.where({a} > 0, 1.0, {a})",
            f"torch.eye({a}.shape[-1]) + {a}.sum()",
            f"{a}.float() ** {d.choice(('2', '3', '0', '1'))}",
            f"({a}.abs() + 1) ** {d.choice(('0.5', '-1', '1.5', '-2.0'))}",
        )
    )


def ordered(d: Drawing) -> str:
    a = d.floating(1)
    k = d.axis(a)
    size = d.tensors[a].shape[k]
    return d.choice(
        (
            f"{a}.cumsum({k})",
            f"{a}.sort({k}, descending={d.flag()}, stable=True).values",
            f"{a}.sort({k}, stable=True).indices",
            f"{a}.topk({max(1, size // 2)}, {k}, largest={d.flag()}).values",
            f"{a}.cumprod({k})",
            f"{a}.logcumsumexp({k})",
            f"{a}.cummax({k}).values",
            f"{a}.diff(dim={k})",
        )
    )


STATEMENTS = (
    (unary, 5),
    (binary, 6),
    (two_tensors, 3),
    (comparison, 1),
    (logic, 1),
    (integers, 1),
    (cast, 1.5),
    (choose, 2),
    (view, 9),
    (join, 2),
    (padded, 1.5),
    (reduction, 3),
    (count, 1),
    (hollow, 0.4),
    (scalars, 2),
    (ordered, 1.5),
)
