"""Statements with layers and indices. Each function takes a ``Drawing`` and gives an expression."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.fuzz.drawing import Drawing, Impossible

Statement = Callable[[], str]


def normalized(d: Drawing) -> str:
    a = d.floating(1)
    t = d.tensors[a]
    last, channels = t.shape[-1], t.shape[1] if t.dim() > 1 else 0
    options = [
        f"F.softmax({a}, {d.axis(a)})",
        f"F.log_softmax({a}, {d.axis(a)})",
        f"F.layer_norm({a}, ({last},))",
        f"F.normalize({a}, dim={d.axis(a)})",
        f"F.rms_norm({a}, ({last},))",
    ]
    if t.dtype == torch.float32:
        options.append(f"{d.module(f'nn.LayerNorm({last})')}({a})")
    if channels and t.dtype == torch.float32 and t.dim() <= 4:
        kind = max(1, t.dim() - 2)
        norm = d.module(f"nn.BatchNorm{kind}d({channels})", training=d.chance(0.6))
        groups = d.choice([g for g in (1, 2, 3, 5) if channels % g == 0])
        options += [f"{norm}({a})", f"{d.module(f'nn.GroupNorm({groups}, {channels})')}({a})"]
        if t.dim() > 2:
            options.append(f"F.instance_norm({a})")
    return d.choice(options)


def dense(d: Drawing) -> str:
    a = d.floating(1)
    t = d.tensors[a]
    last, width = t.shape[-1], d.choice((1, 2, 3, 5))
    bias = f", {d.parameter(width, dtype=t.dtype)}" if d.chance(0.6) else ""
    options = [
        lambda: f"F.linear({a}, {d.parameter(width, last, dtype=t.dtype)}{bias})",
        lambda: f"{a} @ {d.parameter(last, width, dtype=t.dtype)}",
        lambda: f"{a} @ {d.parameter(last, dtype=t.dtype)}",
        lambda: f"torch.matmul({a}, {d.pick(lambda u: u.dtype == t.dtype and u.dim() > 1 and u.shape[-2] == last)})",
        lambda: f"{a}.unsqueeze(-2) @ {a}.unsqueeze(-1)",
        lambda: f"torch.einsum('...i,ji->...j', {a}, {d.parameter(width, last, dtype=t.dtype)})",
    ]
    if t.dim() == 2:
        options.append(
            lambda: (
                f"torch.addmm({d.parameter(last, dtype=t.dtype)}, {a}, "
                f"{d.parameter(last, last, dtype=t.dtype)}, beta=0.5)"
            )
        )
    if t.dim() == 3:
        options.append(lambda: f"torch.bmm({a}, {a}.transpose(1, 2))")
        options.append(lambda: f"F.scaled_dot_product_attention({a}, {a}, {a})")
    if t.dtype == torch.float32:
        options.append(lambda: f"{d.module(f'nn.Linear({last}, {width})')}({a})")
    return d.choice(options)()


def convolution(d: Drawing) -> str:
    a = d.floating(2, lambda t: t.dim() in (3, 4) and t.dtype == torch.float32)
    t = d.tensors[a]
    rank, channels, width = t.dim() - 2, t.shape[1], d.choice((1, 2, 4))
    kernel = [d.choice((1, 2, 3)) for _ in range(rank)]
    groups = d.choice([1, 1, channels]) if channels else 1
    options = f"stride={d.choice((1, 1, 2))}, padding={d.choice((0, 1, 1))}, dilation={d.choice((1, 1, 2))}"
    if d.chance(0.25):
        weight = d.parameter(channels, width, *kernel)
        return f"F.conv_transpose{rank}d({a}, {weight}, stride={d.choice((1, 2))}, padding={d.choice((0, 1))})"
    weight = d.parameter(width * groups, channels // groups, *kernel)
    bias = d.parameter(width * groups) if d.chance(0.5) else "None"
    return f"F.conv{rank}d({a}, {weight}, {bias}, {options}, groups={groups})"


def pooled(d: Drawing) -> str:
    a = d.floating(3, lambda t: t.dim() in (3, 4))
    rank = d.tensors[a].dim() - 2
    kernel, stride = d.choice((1, 2, 3)), d.choice((1, 2))
    pad = d.choice((0, kernel // 2))
    return d.choice(
        (
            f"F.max_pool{rank}d({a}, {kernel}, {stride}, {pad}, ceil_mode={d.flag()})",
            f"F.avg_pool{rank}d({a}, {kernel}, {stride}, {pad}, ceil_mode={d.flag()}, count_include_pad={d.flag()})",
            f"F.adaptive_avg_pool{rank}d({a}, {d.choice((1, 2, 3))})",
            f"F.adaptive_max_pool{rank}d({a}, {d.choice((1, 2))})",
            f"F.interpolate({a}, scale_factor=2, mode={d.choice(('nearest', 'bi' * (rank - 1) + 'linear'))!r})",
        )
    )


def indexed(d: Drawing) -> str:
    a = d.pick(lambda t: t.dim() >= 1)
    t, k = d.tensors[a], d.axis(a)
    size, count = t.shape[k], d.choice((1, 3, 4))
    along = [count if j == k % t.dim() else n for j, n in enumerate(t.shape)]
    return d.choice(
        (
            lambda: f"{a}.gather({k}, {d.indices(*along, below=size)})",
            lambda: f"{a}.index_select({k}, {d.indices(count, below=size)})",
            lambda: f"{a}[{d.indices(count, below=t.shape[0])}]",
            lambda: (
                f"{a}[{d.indices(2, 1, below=t.shape[0])}"
                f"{', ' + d.indices(3, below=t.shape[1]) if t.dim() > 1 else ''}]"
            ),
            lambda: f"{a}[..., {d.indices(2, 2, below=t.shape[-1])}]",
            lambda: f"{a}.take({d.indices(2, 3, below=t.numel())})",
            lambda: f"{a}[{d.indices(2, below=size)} % {t.shape[0]}, ..., None]",
            lambda: f"{a}.index_select({k}, {d.indices(count, below=size)}.to(torch.int32))",
            lambda: f"torch.take_along_dim({a}, {d.indices(*along, below=size)}, {k})",
        )
    )()


def embedded(d: Drawing) -> str:
    rows, width = d.choice((3, 5)), d.choice((1, 2, 4))
    names = [n for n, t in d.tensors.items() if t.dtype == torch.int64]
    index = f"{d.choice(names)} % {rows}" if names and d.chance(0.6) else d.indices(2, 3, below=rows)
    padding = f", padding_idx={d.choice((0, -1))}" if d.chance(0.3) else ""
    return f"F.embedding({index}, {d.parameter(rows, width)}{padding})"


def scattered(d: Drawing) -> str:
    a = d.floating(1)
    t, k = d.tensors[a], d.axis(a)
    size = t.shape[k]
    source = d.parameter(*t.shape, dtype=t.dtype)
    index = d.indices(*t.shape, below=size)
    lines = d.indices(size, below=size)
    reduce, extreme = d.choice(("sum", "amax", "amin", "mean", "prod")), d.choice(("amax", "amin", "mean"))
    first, row = d.indices(2, below=t.shape[0]), d.parameter(*t.shape[1:], dtype=t.dtype)
    return d.choice(
        (
            f"{a}.scatter_add({k}, {index}, {source})",
            f"{a}.scatter_reduce({k}, {index}, {source}, {reduce!r})",
            f"{a}.index_add({k}, {lines}, {source}, alpha=0.5)",
            f"{a}.scatter({k}, {d.indices(*t.shape, below=1)} * 0, 0.5)",
            f"{a}.index_fill({k}, {lines}, {d.number()})",
            f"{a}.index_put(({first},), {row}, accumulate=True)",
            f"{a}.index_put(({d.mask(a)},), torch.tensor(0.5, dtype={t.dtype}))",
            f"{a}.index_reduce({k}, {lines}, {source}, {extreme!r}, include_self={d.flag()})",
            f"{a}.scatter_reduce({k}, {index}, {source}, {reduce!r}, include_self=False)",
            f"{a}.diagonal_scatter({a}.diagonal() * 2)"
            if t.dim() > 1
            else f"{a}.index_copy({k}, {lines} * 0 + torch.arange({size}), {source})",
            f"({a} + 1).slice_scatter({a} * 2, {k})",
            f"({a} * 2).select_scatter({a}.select({k}, 0) * 3, {k}, {size - 1})",
        )
    )


def losses(d: Drawing) -> str:
    a = d.floating(2, lambda t: t.dim() == 2 and t.shape[0] > 0)
    rows, classes = d.tensors[a].shape
    if not classes:
        raise Impossible
    target = d.indices(rows, below=classes)
    return d.choice(
        (
            f"F.cross_entropy({a}, {target})",
            f"F.nll_loss({a}, {target}, reduction='none')",
            f"F.cross_entropy({a}, {target}, label_smoothing=0.1, reduction='sum')",
            f"F.cosine_similarity({a}, {a}.flip(0), dim=1)",
            f"F.binary_cross_entropy_with_logits({a}, {a}.sigmoid())",
            f"F.kl_div(F.log_softmax({a}, 1), F.softmax({a}.detach() + 1, 1), reduction='batchmean')",
            f"F.huber_loss({a}, {a}.flip(0).detach(), reduction={d.choice(('none', 'sum', 'mean'))!r})",
            f"F.nll_loss(F.log_softmax({a}, 1), {target}, ignore_index=0, reduction='sum')",
            f"F.soft_margin_loss({a}, {a}.sign().detach() + 0.5)",
            f"F.multi_margin_loss({a}, {target})",
            f"F.poisson_nll_loss({a} * 0.2, {a}.abs().detach())",
        )
    )


def trained(d: Drawing) -> str:
    """Layers as they are in training, with masks that drop nothing and statistics that a call renews."""
    a = d.floating(1, lambda t: t.dtype == torch.float32 and t.numel() > 0)
    t = d.tensors[a]
    last, channels = t.shape[-1], t.shape[min(1, t.dim() - 1)]
    mean, scale = d.parameter(channels), d.parameter(channels)
    options: list[Statement] = [
        lambda: f"F.dropout({a}, 0.0, training=True)",
        lambda: f"{d.module('nn.Dropout(0.0)')}({a}) * 2",
        lambda: f"F.alpha_dropout({a}, 0.0, training=True)",
        lambda: f"{d.module('nn.PReLU()')}({a})",
        lambda: f"F.gumbel_softmax({a}, dim=-1) * 0 + {a}",
        lambda: f"{d.module(f'nn.Bilinear({last}, {last}, 2)')}({a}, {a})",
    ]
    if t.dim() > 1:
        options += [
            lambda: f"F.batch_norm({a}, None, None, {scale}, {mean}, training=True)",
            lambda: f"F.group_norm({a}, 1)",
            lambda: f"F.group_norm({a}, {channels}, {scale}, {mean})",
        ]
    if t.dim() in (3, 4):
        options += _of_signals(d, a, channels, t.dim() - 2)
    if t.dim() == 4:
        options += _of_images(d, a, *t.shape[2:])
    return d.choice(options)()


def _of_signals(d: Drawing, a: str, channels: int, rank: int) -> list[Statement]:
    """Layers with ``rank`` spatial dimensions."""
    norm = d.choice(("track_running_stats=True", "affine=True", "track_running_stats=True, momentum=None"))
    batch = d.choice(("momentum=None", "affine=False", "eps=0.1, momentum=0.5", "track_running_stats=False"))
    mode, around = d.choice(("circular", "replicate", "zeros")), d.choice(("same", "valid"))
    return [
        lambda: f"{d.module(f'nn.InstanceNorm{rank}d({channels}, {norm})')}({a})",
        lambda: f"{d.module(f'nn.BatchNorm{rank}d({channels}, {batch})')}({a})",
        lambda: f"{d.module(f'nn.Conv{rank}d({channels}, 2, 3, padding=1, padding_mode={mode!r})')}({a})",
        lambda: f"{d.module(f'nn.Conv{rank}d({channels}, 2, 2, padding={around!r})')}({a})",
        lambda: f"F.dropout{rank}d({a}, 0.0)",
        lambda: f"F.local_response_norm({a}, 2)",
        lambda: f"F.lp_pool{rank}d({a}.abs() + 0.1, 2, 2)",
    ]


def _of_images(d: Drawing, a: str, height: int, width: int) -> list[Statement]:
    return [
        lambda: f"F.unfold({a}, 2, padding=1)",
        lambda: f"F.fold(F.unfold({a}, 2), {a}.shape[2:], 2)",
        lambda: f"F.interpolate({a}, size=(3, 4), mode='bilinear', align_corners={d.flag()})",
        lambda: f"F.pixel_unshuffle(F.pad({a}, (0, {width % 2}, 0, {height % 2})), 2)",
    ]


LAYERS = (
    (normalized, 2.5),
    (dense, 3),
    (convolution, 2),
    (pooled, 1.5),
    (indexed, 2.5),
    (embedded, 1),
    (scattered, 1.5),
    (losses, 1),
    (trained, 2.5),
)
