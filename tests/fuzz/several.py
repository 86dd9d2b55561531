"""Statements with several results. Each function takes a ``Drawing`` and gives an expression and how many it gives."""

from __future__ import annotations

import torch

from tests.fuzz.drawing import Drawing, Impossible

Several = tuple[str, int]


def pieces(d: Drawing) -> Several:
    a = d.pick(lambda t: t.dim() >= 1)
    k = d.axis(a, lambda n: n in (2, 3))
    n = d.tensors[a].shape[k]
    first = d.rng.randint(0, n)
    return d.choice(
        (
            (f"{a}.unbind({k})", n),
            (f"{a}.split(1, {k})", n),
            (f"{a}.split(({first}, {n - first}), {k})", 2),
            (f"{a}.chunk(2, {k})", 2),
            (f"{a}.tensor_split((1,), {k})", 2),
            (f"(p * 2 for p in {a}.unbind({k}))", n),
        )
    )


def chosen(d: Drawing) -> Several:
    a = d.floating(1, lambda t: t.numel() > 0)
    k, keep = d.axis(a), d.flag()
    size = d.tensors[a].shape[k]
    return d.choice(
        (
            (f"{a}.topk({max(1, size // 2)}, {k})", 2),
            (f"{a}.sort({k}, stable=True)", 2),
            (f"{a}.max({k}, keepdim={keep})", 2),
            (f"{a}.min({k})", 2),
            (f"{a}.cummax({k})", 2),
            (f"{a}.kthvalue({size}, {k}, keepdim={keep})", 2),
            (f"torch.aminmax({a}, dim={k}, keepdim={keep})", 2),
            (f"torch.var_mean({a}, {k}, correction=0, keepdim={keep})", 2),
            (f"torch.std_mean({a}, {d.axes(a)}, correction=0)", 2),
            (f"torch.frexp({a})", 2),
        )
    )


def spread(d: Drawing) -> Several:
    a = d.floating()
    b = d.operand(a)
    if not b.replace("self.", "").isidentifier():
        raise Impossible
    return d.choice(
        (
            (f"torch.broadcast_tensors({a}, {b})", 2),
            (f"torch.meshgrid({a}.flatten()[:3], {b}.flatten()[:2], indexing={d.choice(('ij', 'xy'))!r})", 2),
            (f"({a} + {b}, {a} - {b})", 2),
            (f"({a}.sin(), {a}.cos(), {b} * 2)", 3),
        )
    )


def indexed_pool(d: Drawing) -> Several:
    a = d.floating(3, lambda t: t.dim() in (3, 4) and t.dtype == torch.float32)
    rank = d.tensors[a].dim() - 2
    return f"F.max_pool{rank}d({a}, 2, {d.choice((1, 2))}, return_indices=True)", 2


def recurrent(d: Drawing) -> Several:
    a = d.floating(3, lambda t: t.dim() == 3 and t.dtype == torch.float32 and t.numel() > 0)
    last, width = d.tensors[a].shape[-1], d.choice((1, 2, 4))
    kind = d.choice(("GRU", "RNN", "LSTM"))
    more = d.choice(("", ", batch_first=True", ", bidirectional=True", ", num_layers=2"))
    layer = d.module(f"nn.{kind}({last}, {width}{more})")
    return (f"{layer}({a})", 2) if kind != "LSTM" else (f"(lambda o: (o[0], *o[1]))({layer}({a}))", 3)


def attention(d: Drawing) -> Several:
    a = d.floating(3, lambda t: t.dim() == 3 and t.dtype == torch.float32 and t.numel() > 0)
    last = d.tensors[a].shape[-1]
    layer = d.module(f"nn.MultiheadAttention({last}, 1, batch_first={d.flag()})")
    return f"{layer}({a}, {a}, {a})", 2


SEVERAL = ((pieces, 3), (chosen, 3), (spread, 2), (indexed_pool, 0.7), (recurrent, 0.7), (attention, 0.5))
