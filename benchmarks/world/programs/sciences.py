"""Physics and mathematics: equations as losses, forces as derivatives, solvers inside of networks."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with an activation between two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


@program
def physics_informed(k: int) -> Program:
    """The viscous Burgers equation: derivatives of the network by its inputs, up to the second, are the loss."""

    def derivative(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]

    def step(net: nn.Module, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        t, x = t.clone().requires_grad_(), x.clone().requires_grad_()
        u = net(torch.cat([t, x], 1))
        ut, ux = derivative(u, t), derivative(u, x)
        residual = ut + u * ux - 0.01 / math.pi * derivative(ux, x)
        start = net(torch.cat([torch.zeros_like(t), x], 1)) + torch.sin(math.pi * x)
        loss = residual.square().mean() + start.square().mean()
        loss.backward()
        return loss

    return Program(mlp(2, 32, 32, 32, 1), (torch.rand(256 + 64 * k, 1), torch.rand(256 + 64 * k, 1) * 2 - 1), step)


class _ForceField(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.message = mlp(16 * 2 + 8, 32, 16, activation=nn.SiLU)
        self.energy = mlp(16, 32, 1, activation=nn.SiLU)
        self.register_buffer("centers", torch.linspace(0.5, 4.0, 8))

    def forward(self, kinds: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position = position.requires_grad_()
        difference = position[:, None] - position[None]
        distance = (difference.square().sum(-1) + 1e-6).sqrt()
        near = torch.exp(-(distance[..., None] - self.centers).square())
        h = self.embedding(kinds)
        count = len(kinds)
        both = torch.cat([h[:, None].expand(-1, count, -1), h[None].expand(count, -1, -1), near], -1)
        h = h + (self.message(both) * (distance < 4.0)[..., None]).sum(1)
        energy = self.energy(h).sum()
        return energy, -torch.autograd.grad(energy, position, create_graph=True)[0]


@program
def force_field(k: int) -> Program:
    """Energies of atoms, and forces as their derivatives inside of forward; the loss has both."""

    def step(net: nn.Module, kinds: torch.Tensor, position: torch.Tensor, forces: torch.Tensor) -> object:
        energy, force = net(kinds, position.clone())
        loss = (energy + 3.0).square() * 0.01 + F.mse_loss(force, forces)
        loss.backward()
        return loss, force

    n = 20 + 4 * k
    return Program(_ForceField(), (torch.randint(0, 10, (n,)), torch.randn(n, 3) * 2, torch.randn(n, 3)), step)


class _NeuralODE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field, self.evaluations = mlp(3, 32, 32, 2), 0

    def slope(self, t: float, y: torch.Tensor) -> torch.Tensor:
        self.evaluations += 1
        return self.field(torch.cat([y, torch.full_like(y[:, :1], t)], 1))

    def forward(self, y: torch.Tensor, steps: int = 8) -> torch.Tensor:
        h, path = 1.0 / steps, [y]
        for i in range(steps):
            t = i * h
            k1 = self.slope(t, y)
            k2 = self.slope(t + h / 2, y + h / 2 * k1)
            k3 = self.slope(t + h / 2, y + h / 2 * k2)
            k4 = self.slope(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path)


def mse_step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The step of a regression."""
    loss = F.mse_loss(net(x), y)
    loss.backward()
    return loss


@program
def neural_ode(k: int) -> Program:
    """Runge-Kutta steps through a network that counts its evaluations."""
    return Program(_NeuralODE(), (torch.randn(32 + 8 * k, 2), torch.randn(9, 32 + 8 * k, 2)), mse_step)


class _Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field = mlp(2, 32, 2)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        t, h = 0.0, 0.25
        while t < 1.0:
            h = min(h, 1.0 - t)
            k1 = self.field(y)
            k2 = self.field(y + h * k1)
            error = (h / 2 * (k2 - k1)).abs().max().item()
            if error < 0.1:
                t, y = t + h, y + h / 2 * (k1 + k2)
            h = h * min(2.0, max(0.5, 0.9 * (0.1 / (error + 1e-9)) ** 0.5))
        return y


@program
def adaptive_ode(k: int) -> Program:
    """A solver whose step sizes are decided by the error that it finds."""
    return Program(_Adaptive(), (torch.randn(32 + 8 * k, 2), torch.randn(32 + 8 * k, 2)), mse_step)


class _Spectral(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.randn(2, width, width, modes, modes, dtype=torch.cfloat) / width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        f = torch.fft.rfft2(x)
        out = torch.zeros_like(f)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.weights[0])
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.weights[1])
        return torch.fft.irfft2(out, s=x.shape[-2:])


class _Fourier(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.lift, self.project = nn.Conv2d(3, width, 1), mlp(width, 64, 1, activation=nn.GELU)
        self.spectral = nn.ModuleList(_Spectral(width, 6) for _ in range(2))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        x = self.lift(a)
        for spectral, local in zip(self.spectral, self.local):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x.permute(0, 2, 3, 1)).squeeze(-1)


@program
def fourier_operator(k: int) -> Program:
    """A Fourier neural operator on a grid, trained with a relative error."""

    def step(net: nn.Module, a: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        found = net(a)
        loss = ((found - u).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)).mean()
        loss.backward()
        return loss

    return Program(_Fourier(), (torch.randn(2 + k, 3, 32, 32), torch.randn(2 + k, 32, 32)), step)


@program
def deep_operator(k: int) -> Program:
    """DeepONet: a network of the function, one of the place, and their inner product."""

    def step(nets: nn.ModuleDict, u: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(nets["branch"](u) @ nets["trunk"](at).t(), y)
        loss.backward()
        return loss

    nets = nn.ModuleDict({"branch": mlp(50, 64, 32), "trunk": mlp(1, 64, 32)})
    return Program(nets, (torch.randn(16 + k, 50), torch.rand(30, 1), torch.randn(16 + k, 30)), step)


class _Equilibrium(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(8, width)
        self.read = nn.Linear(width, 4)
        nn.init.normal_(self.inner.weight, std=0.05)

    def cell(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(z) + self.outer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            z = x.new_zeros(len(x), 32)
            for _ in range(12):
                z = self.cell(z, x)
        z = self.cell(z, x)
        if self.training:
            z0 = z.clone().detach().requires_grad_()
            f0 = self.cell(z0, x)

            def solve(grad: torch.Tensor) -> torch.Tensor:
                g = grad
                for _ in range(12):
                    g = torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad
                return g

            z.register_hook(solve)
        return self.read(z)


def classify_step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The step of a classification, with the loss as people log it."""
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return torch.tensor(loss.item())


@program
def deep_equilibrium(k: int) -> Program:
    """An implicit layer: a fixed point without gradients, whose adjoint a hook solves."""
    return Program(_Equilibrium(), (torch.randn(16 + k, 8), torch.randint(0, 4, (16 + k,))), classify_step)


class _Hamiltonian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.energy = mlp(4, 64, 64, 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            state = state.requires_grad_()
            slope = torch.autograd.grad(self.energy(state).sum(), state, create_graph=True)[0]
        q, p = slope.chunk(2, -1)
        return torch.cat([p, -q], -1)


@program
def hamiltonian(k: int) -> Program:
    """A network whose field is the symplectic gradient of an energy."""
    return Program(_Hamiltonian(), (torch.randn(64 + 16 * k, 4), torch.randn(64 + 16 * k, 4)), mse_step)


@program
def differentiable_physics(k: int) -> Program:
    """A cart is driven by a policy through a simulator in tensors; the loss is where it ends."""

    def step(policy: nn.Module, state: torch.Tensor) -> torch.Tensor:
        position, velocity = state.unbind(-1)
        for _ in range(20):
            force = policy(torch.stack([position, velocity], -1)).squeeze(-1).clamp(-1, 1)
            velocity = velocity + 0.05 * (force - 0.1 * velocity.abs() * velocity)
            position = position + 0.05 * velocity
        loss = (position - 1).square().mean() + 0.1 * velocity.square().mean()
        loss.backward()
        return loss

    return Program(mlp(2, 32, 1), (torch.randn(32 + 8 * k, 2) * 0.1,), step)


class _Kalman(nn.Module):
    def __init__(self, n: int = 4, m: int = 2) -> None:
        super().__init__()
        self.transition = nn.Parameter(torch.eye(n) + 0.05 * torch.randn(n, n))
        self.reading = nn.Parameter(torch.randn(m, n))
        self.process, self.noise = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(m))

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        eye = torch.eye(4, dtype=seen.dtype)
        mean, covariance = seen.new_zeros(4), eye.clone()
        likelihood = seen.new_zeros(())
        for y in seen:
            mean = self.transition @ mean
            covariance = self.transition @ covariance @ self.transition.t() + torch.diag(self.process.exp())
            innovation = self.reading @ covariance @ self.reading.t() + torch.diag(self.noise.exp())
            root = torch.linalg.cholesky(innovation)
            error = y - self.reading @ mean
            white = torch.linalg.solve_triangular(root, error[:, None], upper=False)
            likelihood = likelihood - 0.5 * white.square().sum() - root.diagonal().log().sum()
            gain = torch.cholesky_solve(self.reading @ covariance, root).t()
            mean, covariance = mean + gain @ error, (eye - gain @ self.reading) @ covariance
        return -likelihood / len(seen)


def loss_step(net: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    """The step of a network whose forward is its loss."""
    loss = net(*inputs)
    loss.backward()
    return loss


@program
def kalman_filter(k: int) -> Program:
    """The likelihood of a linear state space, by Cholesky factors."""
    return Program(_Kalman(), (torch.randn(12 + 4 * k, 2),), loss_step)


class _GaussianProcess(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features, self.log_noise = mlp(3, 32, 2), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.features(x)
        kernel = torch.exp(-0.5 * torch.cdist(z, z).square()) + self.log_noise.exp() * torch.eye(len(x), dtype=x.dtype)
        root = torch.linalg.cholesky(kernel)
        weights = torch.cholesky_solve(y[:, None], root)
        return 0.5 * (y @ weights).sum() + root.diagonal().log().sum()


@program
def deep_kernel(k: int) -> Program:
    """The marginal likelihood of a Gaussian process over learned features."""
    return Program(_GaussianProcess(), (torch.randn(40 + 8 * k, 3), torch.randn(40 + 8 * k)), loss_step)


@program
def sinkhorn(k: int) -> Program:
    """Optimal transport between the outputs of a network and a target, in logarithms."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        cost = torch.cdist(net(x), y).square()
        f, g = torch.zeros_like(cost[:, 0]), torch.zeros_like(cost[0])
        for _ in range(10):
            f = -0.1 * torch.logsumexp((g[None] - cost) / 0.1, 1)
            g = -0.1 * torch.logsumexp((f[:, None] - cost) / 0.1, 0)
        loss = (torch.exp((f[:, None] + g[None] - cost) / 0.1) * cost).sum() / len(x)
        loss.backward()
        return loss

    return Program(mlp(2, 32, 2), (torch.randn(24 + k, 2), torch.randn(20, 2)), step)


class _SoftDTW(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h, _ = self.gru(x)
        cost = torch.cdist(self.out(h), y).square()
        n, m = cost.shape[1:]
        infinite = cost.new_full((len(x),), 1e4)
        row = [torch.zeros_like(infinite)] + [infinite] * m
        for i in range(n):
            new = [infinite]
            for j in range(m):
                near = torch.stack([row[j], row[j + 1], new[j]])
                new.append(cost[:, i, j] - torch.logsumexp(-near, 0))
            row = new
        return row[-1].mean()


@program
def soft_dtw(k: int) -> Program:
    """The smooth distance of warped sequences, by dynamic programming."""
    return Program(_SoftDTW(), (torch.randn(4 + k, 6, 3), torch.randn(4 + k, 5, 3)), loss_step)
