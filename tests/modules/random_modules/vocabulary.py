"""What random modules are made of: texts with holes, by theme.

A hole in braces is filled with a name or an expression: ``{t}`` and ``{u}`` a tensor of shape (n, 4), ``{o}`` one that
the module may write into, ``{v}`` a view of such a one, of any shape, ``{q}`` one of shape (4,), ``{s}`` one of rank 0,
``{f}`` a float, ``{k}`` an integer, ``{c}`` a condition. ``{+t}`` and so on is a new name for a value of that kind.
What occurs in a text as ``self.name`` or as a name of ``DEFINITIONS`` is written into the program, nothing else is.
"""

from __future__ import annotations

HEAD = """\
import contextlib, dataclasses, functools, math, random, types, warnings
from collections import OrderedDict, defaultdict, namedtuple
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint
"""


def _entries(text: str) -> list[str]:
    """One a line; a line that begins with a bar belongs to the entry above it."""
    return text.strip().replace("\n| ", "\0").replace("\n", "\1").replace("\0", "\n").split("\1")


DEFINITIONS = {
    "Stop": """
class Stop(Exception):
    pass
""",
    "Pair": """
Pair = namedtuple("Pair", ["first", "second"])
""",
    "State": """
@dataclasses.dataclass
class State:
    value: torch.Tensor
    label: str = "state"
    more: object = None
""",
    "Squash": """
class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k, name="tanh"):
        y = (x * k).tanh()
        ctx.save_for_backward(y)
        ctx.k = k
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * ctx.k * (1 - y.square()), None, None
""",
    "Straight": """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g
""",
    "Reverse": """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.weight * g, None
""",
    "Halve": """
class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx, g):
        return g * 0.5
""",
    "Twice": """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x.detach().argmax(1)

    @staticmethod
    def backward(ctx, g, _):
        x, y = ctx.saved_tensors
        return (g * y if ctx.needs_input_grad[0] else None), (g * x if ctx.needs_input_grad[1] else None)
""",
    "Exp": """
class Exp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (x * 0.3).exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return g * 0.3 * ctx.saved_tensors[0]
""",
    "Symmetric": """
class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).T
""",
    "Residual": """
class Residual(nn.Module):
    def __init__(self, inner, rate=0.5):
        super().__init__()
        self.inner = inner
        self.rate = rate

    def forward(self, x, *args, **kwargs):
        return x + self.rate * self.inner(x, *args, **kwargs)
""",
    "Counting": """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.calls = 0
        self.kept = []

    def forward(self, x, scale=1.0, *, keep=False):
        self.calls += 1
        self.seen += x.shape[0]
        y = self.lin(x) * scale
        if keep:
            self.kept.append(y.detach().mean())
        return y, {"calls": self.calls, "mean": y.mean()}
""",
    "Momentum": """
class Momentum(nn.Module):
    def __init__(self, rate=0.1):
        super().__init__()
        self.rate = rate
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                if not self.ready:
                    self.average.copy_(x.mean(0))
                    self.ready.fill_(True)
                else:
                    self.average.lerp_(x.mean(0), self.rate)
        return x - self.average
""",
    "Base": """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.first(x))


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.scratch = None

    @property
    def factor(self):
        return 0.5 + self.second.bias.sum() * 0.1

    def forward(self, x):
        self.scratch = super().forward(x)
        return self.second(self.scratch) * self.factor
""",
    "soften": """
def soften(t, s):
    t = t * s
    if t.sum() > 0:
        t = t.tanh()
    return t
""",
    "update": """
def update(t, u):
    t.mul_(0.5)
    torch._dynamo.graph_break()
    t.add_(u)
    return t
""",
    "rows": """
def rows(t):
    for k, row in enumerate(t):
        yield row * (k + 1)
""",
    "average": """
@torch.no_grad()
def average(t):
    return t.mean(0)
""",
    "evaluating": """
@contextlib.contextmanager
def evaluating(module):
    before = module.training
    module.eval()
    try:
        yield module
    finally:
        module.train(before)
""",
    "remembered": """
@functools.lru_cache(maxsize=None)
def remembered(n):
    return [1 / (k + 1) for k in range(n)]
""",
    "double_output": """
def double_output(module, args, output):
    return output * 2
""",
    "count_calls": """
def count_calls(module, args, output):
    module.calls = getattr(module, "calls", 0) + 1
""",
    "keep_output": """
def keep_output(module, args, output):
    module.features = output
""",
    "shift_input": """
def shift_input(module, args):
    return (args[0] + 0.1, *args[1:])
""",
    "with_keywords": """
def with_keywords(module, args, kwargs, output):
    return output + kwargs.get("bias", 0.25)
""",
    "scale_gradient": """
def scale_gradient(module, grad_input, grad_output):
    return tuple(None if g is None else g * 0.5 for g in grad_input)
""",
    "clip_gradient": """
def clip_gradient(module, grad_output):
    return tuple(None if g is None else g.clamp(-0.5, 0.5) for g in grad_output)
""",
}
"""Classes and functions beside the module."""

MEMBERS = {
    "lin": "nn.Linear(4, 4)",
    "deep": "nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))",
    "inplace": "nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.LeakyReLU(0.1, True))",
    "named": "nn.Sequential(OrderedDict(first=nn.Linear(4, 4), act=nn.SiLU(), norm=nn.LayerNorm(4)))",
    "stack": "nn.ModuleList(nn.Linear(4, 4) for _ in range(3))",
    "choice": 'nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh(), "c": nn.Identity()})',
    "shared": "nn.ModuleList([self.lin, nn.Tanh(), self.lin])",
    "w": "nn.Parameter(torch.randn(4, 4) * 0.5)",
    "scale": "nn.Parameter(torch.randn(4))",
    "gain": "nn.Parameter(torch.tensor(0.7))",
    "frozen": "nn.Parameter(torch.randn(4), requires_grad=False)",
    "parts": "nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])",
    "params": 'nn.ParameterDict({"a": nn.Parameter(torch.randn(4)), "b": nn.Parameter(torch.randn(4, 4) * 0.5)})',
    "tied": "nn.Linear(4, 4, bias=False)\nself.tied.weight = self.w",
    "weighted": "parametrizations.weight_norm(nn.Linear(4, 4))",
    "old_weighted": "nn.utils.weight_norm(nn.Linear(4, 4))",
    "spectral": "parametrizations.spectral_norm(nn.Linear(4, 4))",
    "old_spectral": "nn.utils.spectral_norm(nn.Linear(4, 4))",
    "symmetric": 'nn.Linear(4, 4)\nparametrize.register_parametrization(self.symmetric, "weight", Symmetric())',
    "orthogonal": "parametrizations.orthogonal(nn.Linear(4, 4))",
    "norm": "nn.BatchNorm1d(4)",
    "plain_norm": "nn.BatchNorm1d(4, momentum=None, affine=False)",
    "layer": "nn.LayerNorm(4)",
    "group": "nn.GroupNorm(2, 4)",
    "drop": "nn.Dropout(0.0)",
    "embed": "nn.Embedding(5, 4, max_norm=1.0)",
    "words": "nn.Embedding(5, 4, padding_idx=0)",
    "conv": "nn.Conv1d(1, 1, 3, padding=1)",
    "rnn": "nn.GRU(4, 4, batch_first=True)",
    "cell": "nn.LSTMCell(4, 4)",
    "attention": "nn.MultiheadAttention(4, 2, batch_first=True)",
    "encoder": "nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)",
    "bilinear": "nn.Bilinear(4, 4, 4)",
    "doubled": "nn.Linear(4, 4)\nself.doubled.register_forward_hook(double_output)",
    "counted": "nn.Linear(4, 4)\nself.counted.register_forward_hook(count_calls)",
    "spied": "nn.Linear(4, 4)\nself.spied.register_forward_hook(keep_output)",
    "shifted": "nn.Linear(4, 4)\nself.shifted.register_forward_pre_hook(shift_input)",
    "keyed": "Residual(nn.Linear(4, 4))\nself.keyed.inner.register_forward_hook(with_keywords, with_kwargs=True)",
    "scaled": "nn.Linear(4, 4)\nself.scaled.register_full_backward_hook(scale_gradient)",
    "clipped": "nn.Linear(4, 4)\nself.clipped.register_full_backward_pre_hook(clip_gradient)",
    "residual": "Residual(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), 0.3)",
    "nested": "Residual(Residual(nn.Linear(4, 4)))",
    "counting": "Counting()",
    "momentum": "Momentum()",
    "derived": "Derived()",
    "total": "torch.zeros(4)",
    "table": "torch.randn(4, 4)",
    "count": "torch.tensor(0)",
    "passing": "torch.ones(4)",
    "empty": "None",
    "step": "0",
    "rate": "0.5",
    "flag": "True",
    "mode": '"a"',
    "memory": "[]",
    "cache": "{}",
    "last": "None",
    "config": "types.SimpleNamespace(scale=0.5, depth=2)",
    "counts": "defaultdict(int)",
}
"""What ``__init__`` sets, in its order."""

BUFFERS = {"total", "table", "count", "passing", "empty"}
"""Members that are registered as buffers."""

NUMBERS = {
    "f": _entries("""
r
0.7
1.3
self.rate
self.config.scale
1 / (1 + k)
{t}.shape[0] / 7
math.sqrt(k + 1)
"""),
    "k": _entries("""
k
k % 3
self.step
{t}.shape[0]
2
self.config.depth
"""),
    "s": _entries("""
{t}.mean()
{t}.square().mean()
{t}[0, 1]
{t}.abs().max()
self.gain
{q}.sum()
{t}.norm()
"""),
    "q": _entries("""
self.scale
{t}.mean(0)
{t}[0]
self.table[1]
self.total
self.parts[1]
self.frozen
self.params["a"]
{t}.sum(0).tanh()
average({t})
self.passing
"""),
    "c": _entries("""
{t}.sum() > 0.1
{t}[0, 0] > {u}[1, 1]
float({t}.abs().mean()) > 0.4
self.training
k > 2
{t}.shape[0] > 5
({t} > 0.5).any()
{s} > 0.2
bool({t}.mean() < 0.0)
self.flag
self.mode == "a"
self.last is None
mask is None
{t}.requires_grad
torch.is_grad_enabled()
len(self.memory) > 1
{s}.item() > 0.3
torch.isnan({t}).any()
r > 0.6
isinstance(extra, dict)
{t} is {u}
torch.equal({t}, {u})
{t}.is_contiguous()
self.step % 2 == 0
not torch.isfinite({t}).all()
torch.allclose({t}, {u})
self.config.depth > 1
"""),
}
"""Expressions of each kind beside the names that have a value."""

LAYERS = _entries("""
{+t} = self.lin({t})
{+t} = self.deep({t})
{+t} = self.inplace({t})
{+t} = self.named({t})
{+t} = {t}
| for layer in self.stack:
|     {+t} = torch.tanh(layer({+t}))
{+t} = {t}
| for i, layer in enumerate(self.shared):
|     {+t} = layer({+t}) + i * 0.1
{+t} = sum(layer({t}) for layer in self.stack)
{+t} = self.choice["a" if {c} else "b"]({t})
{+t} = self.choice[self.mode]({t})
{+t} = {t}
| for name, layer in self.choice.items():
|     {+t} = layer({+t}) * len(name)
{+t} = self.stack[{k} % 3]({t})
{+t} = self.tied({t}) @ self.w
{+t} = F.linear({t}, self.tied.weight, self.scale)
{+t} = self.weighted({t})
{+t} = self.spectral({t})
{+t} = self.old_weighted({t})
{+t} = self.old_spectral({t})
{+t} = self.symmetric({t})
with parametrize.cached():
|     {+t} = self.symmetric({t}) + self.symmetric({u})
{+t} = {t} @ self.orthogonal.weight
{+t} = self.norm({t})
{+t} = self.plain_norm({t})
{+t} = self.layer({t})
{+t} = self.group({t})
{+t} = self.drop({t})
{+t} = self.embed({t}.argmax(1)) + {t}
{+t} = self.words({t}.argmax(1)) * {u}
{+t} = self.conv({t}[:, None])[:, 0]
{+t} = self.rnn({t}[None])[0][0]
{+t}, {+o} = self.cell({t})
{+t} = self.attention({t}[None], {u}[None], {t}[None])[0][0]
{+t} = self.encoder({t}[None])[0]
{+t} = self.bilinear({t}, {u})
{+t} = self.residual({t})
{+t} = self.nested({t})
{+t} = self.derived({t})
{+t} = self.momentum({t})
{+t}, info{n} = self.counting({t})
{+t}, _ = self.counting({t}, {f}, keep={c})
{+t} = self.counting({t}, scale={f})[1]['mean'] * {u}
{+t} = F.gelu({t}) + {q}
{+t} = torch.tanh({t} @ self.w + {u})
{+t} = {t} * {u}.sigmoid()
{+t} = F.softmax({t}, 1) * {u}
{+t} = {t} * {f}
{+t} = {t} + {s}
{+t} = {t} - {k} * 0.1 * {u}
{+t} = torch.where({t} > 0, {u}, {t} * 0.1)
{+t} = {t}.sort(0).values
{+t} = {t}.cumsum(0).tanh()
{+t} = torch.cat([{t}[1:], {u}[:1]])
{+t} = torch.roll({t}, 1, 0)
{+t} = {t} / (1 + self.step)
{+t} = soften({t}, {f})
{+t} = {t}[torch.randperm({t}.shape[0]).sort().values]
{+t} = torch.einsum('ij,jk->ik', {t}, self.params['b'])
{+s} = F.mse_loss({t}, {u})
{+s} = F.cross_entropy({t}, {u}.argmax(1))
{+s} = {s}
{+q} = {q} * {s}
{+q} = {t}[{t}[:, 0].argmax()]
""")
"""Layers of all kinds and arithmetic between them."""

HOOKS = _entries("""
{+t} = self.doubled({t})
{+t} = self.counted({t})
{+t} = self.spied({t}) + self.spied.features
{+t} = self.shifted({t})
{+t} = self.keyed({t})
{+t} = self.scaled({t})
{+t} = self.clipped({t})
{+t} = self.scaled(self.clipped({t}))
{+t} = self.lin({t})
| if {+t}.requires_grad:
|     {+t}.register_hook(lambda g: g * 0.5)
{+t} = self.deep({t})
| if {+t}.requires_grad:
|     {+t}.register_hook(lambda g: self.memory.append(g.sum().detach()))
{+t} = self.lin({t})
| if {+t}.requires_grad:
|     {+t}.retain_grad()
|     self.last = {+t}
handle = self.lin.register_forward_hook(double_output)
| {+t} = self.lin({t})
| handle.remove()
{+t} = torch.tanh({t})
| if {+t}.requires_grad:
|     {+t}.register_hook(lambda g, k=k: g.clamp(-k, k))
|     {+t}.register_hook(lambda g: g + 0.01)
if {t}.requires_grad and not {t}.is_leaf:
|     {t}.register_hook(lambda g: g.flip(0))
{+t} = self.spied({t})
| self.memory = [self.spied.features.detach()[0]]
""")
"""Hooks of modules and tensors."""

VIEWS = _entries("""
{+v} = {o}[:, :2]
{+v} = {o}.t()
{+v} = {o}.view(-1)
{+v} = {o}[1:]
{+v} = {o}[0]
{+v} = {o}.unsqueeze(0)
{+v} = {o}[:, 1]
{+v} = {o}.reshape(-1)[2:]
{+v} = {o}[k % 2:]
{+v} = {o}.chunk(2, 1)[1]
{+v} = {o}.unbind(0)[1]
{+v} = {o}[..., None]
{+v} = {o}.narrow(0, 0, 2)
{+v} = {o}.detach()
{+v} = {o}[::2]
{+v} = {o}.diagonal()
{+v} = {o}.view(-1, 2, 2).transpose(1, 2)
{+v} = {o}.split(2, 1)[0]
{+v} = {o}.view_as({o})
{+v} = {o}.as_strided((2, 2), (4, 1), 1)
{+v} = {o}.data
{+v} = {o}.unfold(1, 2, 2)
{+v} = {o}.squeeze(0)
{+v} = {o}.permute(1, 0)
{+v} = {o}.select(1, k % 4)
{+v}, rest{n} = {o}.split([1, 3], 1)
{+v} = {o}.movedim(0, 1)
{+v} = {o}.T[1:3]
{+v} = {o}.swapaxes(0, 1).flatten()
{+v} = {v}[..., :1]
{+v} = {v}.detach()
{+v} = {o}.expand(2, -1, -1)[1]
{+t} = {v}.sum() + {t}
{+t} = {o}
{+t} = {t}.expand_as({u})
{+t} = {t}.contiguous()
{+t} = {t}.T.T
{+s} = {v}.square().mean()
{+t} = {t}[:]
{+t} = {t}.view({t}.shape)
{+t} = {t}.reshape(-1, 2, 2).flatten(1)
{+t} = {t}.detach()
""")
"""Views of what may be written, and of other tensors."""

WRITES = _entries("""
{+o} = {t}.clone()
{+o} = torch.zeros_like({t})
{+o} = {t} * {q}
{+o} = self.lin({t})
{+o} = torch.empty_like({t}).copy_({u})
{+o} = {t}.new_ones({t}.shape)
{+o} = torch.zeros({t}.shape[0], 4, dtype={t}.dtype)
{+o} = torch.stack([{t}, {u}])[0]
{o}.add_({t})
{o}[{k} % 2] = {q}
{o}[:, 1] = {t}[:, 1]
{o} *= {f}
{o}.mul_({t}.sigmoid())
{o}[{t} > 0.5] = 0.25
{o}.tanh_()
{o} += {q}
{o}.copy_({t} * 1)
{o}[k % 3] += 1
{o}[:, 1:3] -= {t}[:, :2] * 1
{o}.clamp_(-1, 1)
F.relu({o}, inplace=True)
{o}.zero_()
{o}[{t}[:, 0].argmax()] = {q}
{o}.masked_fill_({t} > 1, {f})
torch.add({t}, 1, out={o}.detach())
{o}.index_add_(0, torch.tensor([0, 1]), {t}[:2] * 1)
update({o}, {t})
{o}.data.mul_(0.5)
{o}.detach().add_(0.1)
{o}[0, 1] = {s}
{o}.lerp_({t}, 0.3)
{o}.fill_({s})
{o}.scatter_(0, torch.zeros(1, 4, dtype=torch.long), {t}[:1] * 1)
{o}.index_put_((torch.tensor([0, 1]),), {q}, accumulate=True)
{o}[{t} > {u}] *= 2
{o}[torch.arange(2), torch.arange(2)] = {s}
{o}.addmm_({t} * 1, self.w)
{o}[:2] = {t}[-2:] * 1
{o}.t_().t_()
{v}.mul_(0.5)
{v}.add_({s})
{v} += {f}
{v}[0] = 0.3
{v}.tanh_()
{v} *= {s}
{v}[...] = {v}.flip(0)
{v}.sub_({v}.mean())
{o}.transpose(0, 1).mul_({o}.transpose(0, 1))
torch.mul({t}.detach(), 2, out={o}.detach())
{o}.exponential_().zero_()
y.mul_(0.5)
y[0] += 1
{o}.masked_scatter_({t} > 0, {u} * 1)
{o}.requires_grad_({o}.requires_grad)
F.leaky_relu_({o}, 0.1)
{o}[..., 0].copy_({t}[..., 1] * 1)
for i in range({o}.shape[0]):
|     {o}[i] = torch.tanh({t}[i] @ self.w)
for i in range(1, {o}.shape[0]):
|     {o}[i] = {o}[i - 1] * 0.5 + {t}[i]
with torch.no_grad():
|     {o}.mul_({t}.abs().mean())
""")
"""New tensors, and writes into tensors and views."""

STATE = _entries("""
self.total += {t}.detach().mean(0)
self.total.mul_(0.9).add_({t}.detach().mean(0), alpha=0.1)
self.total = self.total * 0.5 + {t}.detach()[0]
with torch.no_grad():
|     self.table[{k} % 4].copy_({t}[1])
self.table[k % 4] = {t}[0].detach()
self.step += 1
self.rate = self.rate * 0.9
self.memory = [{t}.detach()[0]]
self.total[1] += 1
self.cache[k % 2] = {t}.detach().mean(0)
self.cache['s'] = {s}.detach()
self.count += 1
self.memory.append({t}.detach()[1])
| self.memory = self.memory[-2:]
self.rate = float({t}.detach().sigmoid().mean())
self.last = {t}.detach()
self.last = {t}
if self.last is not None:
|     {+t} = {t} + self.last.detach().mean()
| else:
|     {+t} = {t}
self.mode = 'b' if {c} else 'a'
self.flag = not self.flag
self.counts[self.mode] += 1
self.config.scale *= 0.9
self.config.depth = {k}
self.passing = {q}.detach()
self.passing.data = {q}.detach().clone()
if self.empty is None:
|     self.empty = {t}.detach().mean(0)
self.count.add_({t}.shape[0])
self.cache.setdefault('t', {q}.detach())
self.memory.clear()
with torch.no_grad():
|     self.w.mul_(0.99)
self.scale.data.clamp_(-1, 1)
with torch.no_grad():
|     self.w[0].add_(0.01)
self.lin.weight.data *= 0.99
{+q} = self.memory[-1] if self.memory else {q}
{+q} = self.cache.get('t', {q})
{+t} = {t} * self.step
self.cache[f'{{self.mode}}{{k}}'] = {f}
{+t} = self.momentum({t})
self.norm.eval()
| {+t} = self.norm({t})
with evaluating(self.norm):
|     {+t} = self.norm({t})
self.lin.bias.requires_grad_({c})
self.register_buffer('passing', {q}.detach() * 1)
setattr(self, 'rate', {f})
self.memory.extend([k, {s}.detach()])
| del self.memory[:-2]
self.note = {c}
self.cache.pop('s', None)
{+t} = {t} + getattr(self, 'offset', 0.5)
self.offset = {f}
if 'total' in self._buffers:
|     {+q} = self._buffers['total'] * 2
| else:
|     {+q} = {q}
""")
"""Buffers, parameters, attributes, lists and dicts that change."""

BREAKS = _entries("""
torch._dynamo.graph_break()
print('at', k, {t}.shape)
print(round({s}.item(), 3))
{+f} = {t}.mean().item()
{+f} = float({t}.abs().max()) * 0.5
values = {t}.detach().tolist()
| {+f} = values[0][1]
{+f} = float(np.tanh({t}.detach().numpy()).mean())
{+t} = torch.from_numpy({t}.detach().numpy() * 2)
warnings.warn(f'net: {{k}}')
{+k} = int({t}.abs().sum().item()) % 4
random.random()
{+f} = random.uniform(0.5, 0.6)
{+f} = np.random.uniform(0.5, 0.6)
{+k} = int({t}[:, 1].argmin())
{+q} = {t}[{t}.sum(1) > 0].sum(0)
{+q} = {t}[torch.nonzero({t}[:, 0] > 0)[:, 0]].sum(0)
{+k} = (({t} > 0).sum() % 3).item()
{+t} = torch.stack([row * 0.5 for row in {t}])
{+t} = torch.stack(list(rows({t})))
{+t} = torch.stack([row + j for j, row in enumerate({t})])
{+t} = {t} * sum(remembered(3))
{+f} = max({f}, {s}.item())
print(f'{{self.step}} {{self.mode}}')
assert torch.isfinite({t}).all(), 'not finite'
if {c}:
|     return {t} * 1.5
if {c} and {t}.sum() > 9:
|     raise Stop(k)
{+t} = {t} if {c} else {u}
{+q} = {t}[torch.where({t}[:, 0] > 0)].sum(0)
{+s} = torch.tensor({f})
{+s} = torch.as_tensor({t}.shape[0] / 3, dtype={t}.dtype)
{+t} = {t} * torch.rand(1).mul(0).add(0.5).to({t}.dtype)
{+f} = eval('0.5')
try:
|     {+t} = {t} @ {u}
| except RuntimeError:
|     {+t} = {t} + 1
try:
|     {+f} = self.cache['missing']
| except KeyError as error:
|     {+f} = float(len(str(error)))
total = 0.0
| for row in {t}.unbind(0):
|     if row.sum() < 0:
|         continue
|     total = total + row
| {+q} = total + {q}
""")
"""What a graph breaks at, and decisions by data."""

GRADIENTS = _entries("""
with torch.no_grad():
|     {+t} = self.lin({t})
with torch.enable_grad():
|     {+t} = self.lin({t})
{+t} = {t}.detach() * {u}
{+t} = {t}.detach().requires_grad_()
{+t} = checkpoint(self.deep, {t}, use_reentrant=False)
{+t} = checkpoint(lambda a, b: torch.tanh(a @ self.w) * b, {t}, {u}, use_reentrant=False)
{+t} = Squash.apply({t}, {f})
{+t} = Squash.apply({t}, 2.0, 'tanh')
{+t} = Straight.apply({t} * 3)
{+t} = Reverse.apply({t}, {f})
{+o} = Halve.apply({t} * 1)
{+t}, places{n} = Twice.apply({t}, {u})
{+t} = Exp.apply({t})
{+t} = Squash.apply({t}.detach(), {f}) + {t}
{+t}, _ = Twice.apply({t}, self.scale.expand_as({t}))
with torch.autocast('cpu', torch.bfloat16):
|     {+t} = F.linear({t}.float(), self.w.float()).to({t}.dtype)
with torch.enable_grad():
|     point = {t}.detach().requires_grad_()
|     slope = torch.autograd.grad(self.deep(point).square().sum(), point, create_graph=True)[0]
| {+s} = (slope.norm(dim=1) - 1).square().mean()
with torch.enable_grad():
|     point = {t} if {t}.requires_grad else {t}.detach().requires_grad_()
|     energy = self.deep(point).square().sum()
|     {+t} = -torch.autograd.grad(energy, point, create_graph=self.training)[0]
{+t} = torch.func.vmap(lambda row: torch.tanh(row @ self.w))({t})
{+t} = torch.func.grad(lambda a: (a @ self.w).square().sum())({t})
{+t} = torch.func.jvp(torch.tanh, ({t},), ({u},))[1]
{+t} = torch.func.functional_call(self.lin, {{'weight': self.w, 'bias': self.scale}}, ({t},))
{+q} = torch.func.jacrev(lambda a: (a * self.scale).sum())({q})
with torch.inference_mode():
|     {+f} = float({t}.mean())
with torch.set_grad_enabled(k > 1):
|     {+t} = self.deep({t})
{+t} = ({t} - {u}).detach() + {u}
{+q} = average({t})
{+t} = {t} + (self.w.detach() * self.w).sum()
{+t} = {t} * self.gain.detach()
with torch.no_grad():
|     {+q} = {t}.mean(0)
| {+t} = {t} - {q}
""")
"""Sections without and with gradients, custom functions, checkpoints, derivatives inside of forward."""

CONTAINERS = _entries("""
parts{n} = {{'a': {t}, 'b': {u}}}
| {+t} = parts{n}['a'] + parts{n}.get('b') * len(parts{n})
{+t}, _ = ({t} * 2, {u})
pair{n} = Pair({t}, {u} * 2)
| {+t} = pair{n}.first - pair{n}.second
state{n} = State({t}, more=[{u}])
| state{n}.value = state{n}.value * {f}
| {+t} = state{n}.value + state{n}.more[0]
{+t} = (lambda a, b={t}: a * b + {f})({u})
{+t} = sum([{t} * j for j in range(3)])
{+t} = functools.reduce(torch.add, [{t}, {u}, {t}])
{+t} = max([{t}, {u}], key=lambda a: float(a.sum()))
{+t} = dict(zip('ab', ({t}, {u})))['b'] * 2
if extra is not None:
|     {+t} = {t} + extra['a']
| else:
|     {+t} = {t} * 1
if mask is not None:
|     {+t} = {t}.masked_fill(mask, {f})
| else:
|     {+t} = {t}
for part in rest:
|     x = x + part
if extra is not None:
|     extra['seen'] = k
if extra is not None:
|     extra['b'].append({t}.detach().mean())
if extra is not None:
|     extra['a'].mul_(0.5)
{+f} = sum(r for _ in rest) + 0.5
{+t} = [{t}, {u}][k % 2]
outs{n} = []
| for row in {t}:
|     outs{n}.append(torch.tanh(row @ self.w))
| {+t} = torch.stack(outs{n})
{+t} = {t} * len({{'a', 'b', self.mode}})
{+t}, {+o} = ({t}, {u} * 1) if {c} else ({u}, {t} * 1)
first, *others{n} = {t}.unbind(1)
| {+t} = torch.stack([*others{n}, first], 1)
{+t} = {t}.clone()
| {+t}.tag = k
""")
"""Tuples, lists, dicts and classes of tensors, and optional arguments."""

THEMES = {
    "layers": LAYERS,
    "hooks": HOOKS,
    "views": VIEWS,
    "writes": WRITES,
    "state": STATE,
    "breaks": BREAKS,
    "gradients": GRADIENTS,
    "containers": CONTAINERS,
}

RESULTS = _entries("""
{t}
{t}
{t}, {u}
{t}, {s}
[{t}, {u}]
{{'out': {t}, 'loss': {s}}}
Pair({t}, {s})
State({t}, 'done', {u})
{t}, {v}
{o}, {v}
{v}, {v}
{t}, None, k, 'text'
{{'out': [{t}, ({u}, {s})], 'n': {k}}}
{t}, x
{t}, self.total
{t}, {t}
{t}, {t}[0]
{s}
({t}, {{'aux': {q}, 'empty': []}})
{t}, {f}
x, {t}
{t}, y
{t}, self.w
{t}, ({t} > 0, {t}.argmax(1))
{t}.detach(), {u}
{t}, {u}.data
torch.complex({t}, {u}), {t}
{t}.t(), {u}
{t}.unbind(0)
{t}.split(2, 1)
(a for a in [{t}, {u}])
{t}, self.memory
{t}, self.last
{t}, {c}
dict(a={t}, b={q}, c={{}})
""")
"""What forward returns."""

INPUTS = _entries("""
draw({n}, 4)
draw({n}, 4)
draw({n}, 4)
draw({n}, 4)
draw({n}, 4)
draw({n}, 4)
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw({n}, 4).requires_grad_()
draw(4, {n}).t()
draw({n}, 8)[:, ::2]
draw(4).expand({n}, 4)
draw({n}, 4).float()
draw(2, {n}, 4)[1]
(draw({n}, 4).requires_grad_() * 2)
draw({n}, 8).requires_grad_()[:, :4]
draw({n}, 4).long()
nn.Parameter(draw({n}, 4))
draw({n}, 1, 4, 1).to(memory_format=torch.channels_last)[:, 0, :, 0]
""")
"""Arguments of a call."""

OPTIONAL = _entries("""
k={number}
r={float}
k={number}, r={float}
mask=draw({n}, 4) > 0.5
extra={{'a': draw({n}, 4), 'b': [1]}}
k={number}, mask=draw({n}, 4) > 0, extra=None
r={float}, extra={{'a': draw(4), 'b': []}}
""")
"""Further arguments by name."""

STEPS = {
    "training": (
        4,
        """
net.train()
out = net({call})
see("out", out)
loss = total(out)
backward(loss)
update_parameters(net)
""",
    ),
    "inference": (
        2,
        """
net.eval()
with torch.no_grad():
    see("out", net({call}))
""",
    ),
    "inference_mode": (
        1,
        """
net.eval()
with torch.inference_mode():
    see("out", [a.clone() for a in tensors(net({call}))])
""",
    ),
    "interleaved": (
        1,
        """
first = net({call})
second = net({call2})
see("out", first, second)
backward(total(second))
backward(total(first))
""",
    ),
    "together": (
        1,
        """
first = net({call})
second = net({call2})
backward(total(first) + total(second))
see("out", first, second)
""",
    ),
    "partial": (
        1,
        """
out = net({call})
for one in tensors(out):
    if one.requires_grad:
        leaves = [a for a in (x, *net.parameters()) if a.requires_grad]
        see("gradients", torch.autograd.grad(total(one), leaves, retain_graph=True, allow_unused=True))
see("out", out)
""",
    ),
    "twice": (
        1,
        """
loss = total(net({call}))
backward(loss, retain_graph=True)
backward(loss)
""",
    ),
    "penalty": (
        1,
        """
x = draw({n}, 4).requires_grad_()
out = net({call})
loss = total(out)
if loss.requires_grad:
    (slope,) = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True)
    see("gradient", slope)
    if slope is not None:
        backward(loss + slope.square().sum())
""",
    ),
    "same": (
        1,
        """
out = net(x, x)
see("out", out)
backward(total(out))
""",
    ),
    "between": (
        1,
        """
out = tensors(net({call}))
held = [a for a in out if a.requires_grad and not a.is_leaf]
if len(held) > 1:
    see("between", torch.autograd.grad(total(held[0]), held[1], retain_graph=True, allow_unused=True))
    see("between", torch.autograd.grad(total(held[1]), held[0], retain_graph=True, allow_unused=True))
backward(total(out))
""",
    ),
    "written": (
        1,
        """
out = tensors(net({call}))
for a in out:
    if a.is_floating_point() and not a.is_leaf:
        a.mul_(2)
see("out", out)
backward(total(out))
""",
    ),
    "retained": (
        1,
        """
out = tensors(net({call}))
for a in out:
    if a.requires_grad and not a.is_leaf:
        a.retain_grad()
        a.register_hook(lambda g: g * 2)
backward(total(out))
see("retained", [a.grad for a in out if a.requires_grad and not a.is_leaf])
""",
    ),
    "frozen": (
        1,
        """
for p in list(net.parameters())[:2]:
    p.requires_grad_(not p.requires_grad)
out = net({call})
see("out", out)
backward(total(out))
""",
    ),
    "changed": (
        1,
        """
net.{attribute}
net.train({training})
out = net({call})
see("out", out)
backward(total(out))
""",
    ),
    "loaded": (
        1,
        """
state = {{name: value.clone() for name, value in net.state_dict().items()}}
see("out", net({call}))
net.load_state_dict(state)
see("out", net({call}))
""",
    ),
    "accumulated": (
        1,
        """
for _ in range(2):
    backward(total(net({call})) / 2)
see("gradients", [p.grad for p in net.parameters()])
with torch.no_grad():
    for p in net.parameters():
        p.grad = None
""",
    ),
    "fed_back": (
        1,
        """
out = x
for _ in range(2):
    found = [a for a in tensors(net(out, y)) if a.shape == x.shape and a.dtype == x.dtype]
    out = found[0] if found else out
see("out", out)
backward(total(out))
""",
    ),
    "hooked": (
        1,
        """
handle = net.register_forward_hook(lambda module, args, output: see("seen", output))
before = net.register_forward_pre_hook(lambda module, args: (args[0] * 1, *args[1:]))
out = net({call})
handle.remove()
before.remove()
backward(total(out))
""",
    ),
    "positional": (
        1,
        """
out = net(x, y, {number}, {float}, draw({n}, 4), draw(4))
see("out", out)
backward(total(out))
""",
    ),
}
"""What callers do, with a weight each: parts of a script. What is written is seen after each, without being asked."""

ATTRIBUTES = _entries("""
rate = 0.25
rate = 0.9
step = 7
mode = 'b'
flag = False
last = None
memory = []
config = types.SimpleNamespace(scale=1.5, depth=1)
zero_grad()
requires_grad_(False)
requires_grad_(True)
double()
""")
"""What callers change of a module between calls."""
