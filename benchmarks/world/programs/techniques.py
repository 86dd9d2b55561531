"""Ways to train: learning to learn, adapters, experts, search, masks, surrogate gradients, agents."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import classify_step, loss_step, mlp


@program
def maml(k: int) -> Program:
    """An inner step by functional calls, whose gradient is differentiated."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> object:
        weights, total = dict(net.named_parameters()), 0.0
        for task in range(len(x)):
            near, far = x[task].chunk(2), y[task].chunk(2)
            inner = F.mse_loss(torch.func.functional_call(net, weights, (near[0],)), far[0])
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), slopes)}
            total = total + F.mse_loss(torch.func.functional_call(net, fast, (near[1],)), far[1])
        total.backward()
        return total

    return Program(mlp(1, 32, 32, 1, activation=nn.ReLU), (torch.randn(3, 20 + 2 * k, 1), torch.randn(3, 20 + 2 * k, 1)), step)  # fmt: skip


@program
def prototypes(k: int) -> Program:
    """Classes as means of a few examples."""

    def step(net: nn.Module, few: torch.Tensor, many: torch.Tensor, y: torch.Tensor) -> object:
        means = net(few.flatten(0, 1)).view(4, -1, 16).mean(1)
        loss = F.cross_entropy(-torch.cdist(net(many), means).pow(2), y)
        loss.backward()
        return loss

    n = 12 + k
    return Program(mlp(8, 32, 16, activation=nn.ReLU), (torch.randn(4, 3, 8), torch.randn(n, 8), torch.randint(0, 4, (n,))), step)  # fmt: skip


class _Adapter(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        for parameter in base.parameters():
            parameter.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(rank, base.in_features) * 0.1), nn.Parameter(torch.randn(base.out_features, rank) * 0.1)  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t() * 2.0


@program
def low_rank_adapters(k: int) -> Program:
    """Frozen layers of a transformer with small products beside them."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    layer.linear1, layer.linear2 = _Adapter(layer.linear1), _Adapter(layer.linear2)
    net = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(4))
    net(torch.randn(2, 8, 32))
    return Program(net, (torch.randn(6 + k, 8, 32), torch.randint(0, 4, (6 + k,))), classify_step)


class _Experts(nn.Module):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, count), nn.ModuleList(mlp(16, 32, 16) for _ in range(count))
        self.head = nn.Linear(16, 4)
        self.register_buffer("load", torch.zeros(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = self.gate(x).softmax(-1)
        weight, index = p.topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(index == e)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weight[token, slot, None])
            self.load[e] += token.numel()
        return self.head(out)


@program
def mixture_of_experts(k: int) -> Program:
    """Each expert gathers its own tokens, and counts them."""
    return Program(_Experts(), (torch.randn(32 + 8 * k, 16), torch.randint(0, 4, (32 + 8 * k,))), classify_step)


class _Mixed(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.choices = nn.ModuleList([
            nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 5, padding=2, groups=width),
            nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.Identity(),
        ])  # fmt: skip
        self.alpha = nn.Parameter(1e-3 * torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(w * choice(x) for w, choice in zip(self.alpha.softmax(0), self.choices))


@program
def architecture_search(k: int) -> Program:
    """DARTS: the architecture's gradient by an unrolled step of the weights."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, xv: torch.Tensor, yv: torch.Tensor) -> object:
        weights = [p for n, p in net.named_parameters() if "alpha" not in n]
        slopes = torch.autograd.grad(F.cross_entropy(net(x), y), weights)
        with torch.no_grad():
            for w, g in zip(weights, slopes):
                w -= 0.01 * g
        loss = F.cross_entropy(net(xv), yv)
        loss.backward()
        with torch.no_grad():
            for w, g in zip(weights, slopes):
                w += 0.01 * g
        return loss

    net = nn.Sequential(nn.Conv2d(3, 8, 3), _Mixed(), nn.ReLU(inplace=True), _Mixed(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))  # fmt: skip
    batch = (torch.randn(4 + k, 3, 14, 14), torch.randint(0, 4, (4 + k,)))
    return Program(net, (*batch, *batch), step)


class _Hyper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make, self.task = mlp(4, 32, 8 * 16 + 16 * 4, activation=nn.ReLU), nn.Embedding(5, 4)

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        a, b = self.make(self.task(task)).split([128, 64], -1)
        return torch.bmm(torch.relu(torch.bmm(x, a.view(-1, 8, 16))), b.view(-1, 16, 4))


@program
def hypernetwork(k: int) -> Program:
    """A network whose outputs are another's weights."""

    def step(net: nn.Module, x: torch.Tensor, task: torch.Tensor, y: torch.Tensor) -> object:
        loss = F.cross_entropy(net(x, task).flatten(0, 1), y.flatten())
        loss.backward()
        return loss

    return Program(_Hyper(), (torch.randn(3, 10 + k, 8), torch.tensor([0, 2, 4]), torch.randint(0, 4, (3, 10 + k))), step)  # fmt: skip


@program
def distillation(k: int) -> Program:
    """A student by a teacher's soft answers and its features, which a hook keeps."""

    def step(nets: nn.ModuleDict, x: torch.Tensor, y: torch.Tensor) -> object:
        kept: dict[str, torch.Tensor] = {}
        handle = nets["student"][1].register_forward_hook(lambda module, args, out: kept.update(features=out))
        with torch.no_grad():
            soft = nets["teacher"](x)
        scores = nets["student"](x)
        handle.remove()
        match = F.kl_div(F.log_softmax(scores / 4, 1), F.softmax(soft / 4, 1), reduction="batchmean") * 16
        loss = 0.9 * match + 0.1 * F.cross_entropy(scores, y) + 1e-3 * kept["features"].square().mean()
        loss.backward()
        return loss

    nets = nn.ModuleDict({"student": mlp(16, 16, 4, activation=nn.ReLU), "teacher": mlp(16, 64, 4, activation=nn.ReLU)})
    return Program(nets, (torch.randn(16 + k, 16), torch.randint(0, 4, (16 + k,))), step)


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * grad, None


class _DANN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.domain = mlp(16, 32, 32, activation=nn.ReLU), nn.Linear(32, 4), nn.Linear(32, 2)
        self.progress = 0.0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.progress = min(1.0, self.progress + 0.01)
        h = self.body(x)
        return self.kind(h), self.domain(_Reverse.apply(h, 2 / (1 + 2.718 ** (-10 * self.progress)) - 1))


@program
def gradient_reversal(k: int) -> Program:
    """Domains confused by a reversed gradient, whose strength grows with each call."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor, domain: torch.Tensor) -> object:
        kinds, domains = net(x)
        loss = F.cross_entropy(kinds, y) + F.cross_entropy(domains, domain)
        loss.backward()
        return loss

    n = 16 + k
    return Program(_DANN(), (torch.randn(n, 16), torch.randint(0, 4, (n,)), torch.randint(0, 2, (n,))), step)


class _Gumbel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.temperature = mlp(32, 64, 40), mlp(40, 64, 32), 1.0

    def forward(self, x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        scores = self.encoder(x).view(-1, 10, 4)
        soft = ((scores - torch.log(-torch.log(u))) / self.temperature).softmax(-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        self.temperature = max(0.5, self.temperature * 0.99)
        return F.mse_loss(self.decoder((hard - soft.detach() + soft).flatten(1)), x)


@program
def gumbel_softmax(k: int) -> Program:
    """Discrete latent variables, straight-through, with a temperature that falls."""
    return Program(_Gumbel(), (torch.randn(16 + k, 32), torch.rand(16 + k, 10, 4) * 0.98 + 0.01), loss_step)


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (v,) = ctx.saved_tensors
        return grad / (10 * v.abs() + 1).square()


class _Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.decay = nn.Linear(16, 32), nn.Linear(32, 4), 0.9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v1, v2, total = x.new_zeros(x.shape[1], 32), x.new_zeros(x.shape[1], 4), 0
        for frame in x:
            v1 = self.decay * v1 + self.first(frame)
            s1 = _Spike.apply(v1 - 1.0)
            v1 = v1 - s1.detach()
            v2 = self.decay * v2 + self.second(s1)
            total = total + v2
        return total


@program
def spiking(k: int) -> Program:
    """Leaky neurons with a surrogate gradient."""
    return Program(_Spiking(), (torch.rand(10, 8 + k, 16), torch.randint(0, 4, (8 + k,))), classify_step)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _Quantized(nn.Linear):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after)
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.largest.mul_(0.9).add_(0.1 * x.detach().abs().max())
        scale = self.largest / 127
        x = _Round.apply(torch.clamp(x / scale, -128, 127)) * scale
        step = self.weight.detach().abs().amax(1, keepdim=True) / 127
        return F.linear(x, _Round.apply(self.weight / step) * step, self.bias)


@program
def quantization_aware(k: int) -> Program:
    """Weights and activations rounded straight-through, ranges by moving averages."""
    net = nn.Sequential(_Quantized(16, 32), nn.ReLU6(inplace=True), _Quantized(32, 4))
    return Program(net, (torch.randn(16 + k, 16), torch.randint(0, 4, (16 + k,))), classify_step)


class _Masked(nn.Linear):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after)
        self.register_buffer("mask", torch.ones_like(self.weight))

    def prune(self, share: float) -> None:
        size = self.weight.detach().abs()
        self.mask.copy_(size > size.flatten().kthvalue(int(share * size.numel()))[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


@program
def pruned(k: int) -> Program:
    """Masks by magnitude beside the weights."""
    net = nn.Sequential(_Masked(16, 64), nn.ReLU(), _Masked(64, 64), nn.ReLU(), nn.Linear(64, 4))
    for layer in (net[0], net[2]):
        layer.prune(0.5)
    return Program(net, (torch.randn(16 + k, 16), torch.randint(0, 4, (16 + k,))), classify_step)


class _Hopfield(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stored, self.query, self.out = nn.Parameter(torch.randn(20, 16)), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.query(x)
        for _ in range(10):
            new = (2.0 * state @ self.stored.t()).softmax(-1) @ self.stored
            if torch.norm(new - state) < 1e-4:
                break
            state = new
        return self.out(state)


@program
def hopfield(k: int) -> Program:
    """Retrieval until the state rests, which data decide."""
    return Program(_Hopfield(), (torch.randn(16 + k, 16), torch.randint(0, 4, (16 + k,))), classify_step)


@program
def reinforce(k: int) -> Program:
    """Gradients of log-probabilities, with a baseline."""

    def step(policy: nn.Module, states: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> object:
        returns, running = [], 0.0
        for reward in reversed(rewards.tolist()):
            running = reward + 0.99 * running
            returns.insert(0, running)
        value = torch.tensor(returns, dtype=states.dtype)
        value = (value - value.mean()) / (value.std() + 1e-8)
        chosen = torch.distributions.Categorical(logits=policy(states))
        loss = -(chosen.log_prob(actions) * value).sum() - 0.01 * chosen.entropy().sum()
        loss.backward()
        return loss

    n = 20 + 4 * k
    return Program(mlp(6, 32, 3), (torch.randn(n, 6), torch.randint(0, 3, (n,)), torch.rand(n)), step)


@program
def deep_q_learning(k: int) -> Program:
    """Double Q-learning with a target network."""

    def step(nets: nn.ModuleDict, s: torch.Tensor, a: torch.Tensor, r: torch.Tensor, after: torch.Tensor) -> object:
        with torch.no_grad():
            best = nets["online"](after).argmax(1, keepdim=True)
            target = r + 0.99 * nets["target"](after).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(nets["online"](s).gather(1, a[:, None]).squeeze(1), target)
        loss.backward()
        nn.utils.clip_grad_value_(nets["online"].parameters(), 1.0)
        return loss

    online = mlp(6, 64, 3, activation=nn.ReLU)
    n = 32 + k
    inputs = (torch.randn(n, 6), torch.randint(0, 3, (n,)), torch.randn(n), torch.randn(n, 6))
    return Program(nn.ModuleDict({"online": online, "target": copy.deepcopy(online)}), inputs, step)


@program
def soft_actor_critic(k: int) -> Program:
    """A squashed Gaussian policy and two critics, each with its loss."""

    def step(nets: nn.ModuleDict, s: torch.Tensor, a: torch.Tensor, r: torch.Tensor, noise: torch.Tensor) -> object:
        mean, log_std = nets["actor"](s).chunk(2, -1)
        log_std = torch.clamp(log_std, -20, 2)
        raw = mean + log_std.exp() * noise
        action = torch.tanh(raw)
        log_p = (torch.distributions.Normal(mean, log_std.exp()).log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(1)  # fmt: skip
        one, two = (nets[c](torch.cat([s, action], 1)).squeeze(1) for c in ("one", "two"))
        actor = (0.2 * log_p - torch.min(one, two)).mean()
        critic = sum(F.mse_loss(nets[c](torch.cat([s, a], 1)).squeeze(1), r) for c in ("one", "two"))
        actor.backward()
        critic.backward()
        return actor, critic

    nets = nn.ModuleDict({"actor": mlp(6, 32, 4, activation=nn.ReLU), "one": mlp(8, 32, 1), "two": mlp(8, 32, 1)})
    n = 32 + k
    return Program(nets, (torch.randn(n, 6), torch.rand(n, 2) * 2 - 1, torch.randn(n), torch.randn(n, 2)), step)
