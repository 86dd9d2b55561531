"""Generative models: adversarial, variational, by flows, by scores, by vectors of a code book."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import loss_step, mlp


def _critic() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.InstanceNorm2d(32, affine=True),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 1),
    )


def _generator() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Tanh(),
    )


@program
def wgan_gp(k: int) -> Program:
    """A critic's step with its gradient penalty, then the generator's."""

    def step(nets: nn.ModuleDict, real: torch.Tensor, noise: torch.Tensor, mix: torch.Tensor) -> object:
        critic, generator = nets["critic"], nets["generator"]
        fake = generator(noise).detach()
        between = (mix * real + (1 - mix) * fake).requires_grad_()
        score = critic(between)
        slope = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)[0]
        penalty = (slope.flatten(1).norm(2, dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        generator_loss = -critic(generator(noise)).mean()
        generator_loss.backward()
        return loss, generator_loss

    n = 8 + 2 * k
    inputs = (torch.randn(n, 1, 16, 16), torch.randn(n, 16, 1, 1), torch.rand(n, 1, 1, 1))
    return Program(nn.ModuleDict({"critic": _critic(), "generator": _generator()}), inputs, step)


@program
def dcgan(k: int) -> Program:
    """Both players' losses by binary cross entropy."""

    def step(nets: nn.ModuleDict, real: torch.Tensor, noise: torch.Tensor) -> object:
        critic, generator = nets["critic"], nets["generator"]
        fake = generator(noise)
        ones = torch.ones_like(real[:, :1, 0, 0])
        truth = F.binary_cross_entropy_with_logits(critic(real), ones)
        lie = F.binary_cross_entropy_with_logits(critic(fake.detach()), 1 - ones)
        (truth + lie).backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        deceit = F.binary_cross_entropy_with_logits(critic(fake), ones)
        deceit.backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        return truth, lie, deceit

    inputs = (torch.randn(8 + 2 * k, 1, 16, 16), torch.randn(8 + 2 * k, 16, 1, 1))
    return Program(nn.ModuleDict({"critic": _critic(), "generator": _generator()}), inputs, step)


@program
def spectral_gan(k: int) -> Program:
    """A critic whose weights are divided by their spectral norms, with a hinge."""
    norm = nn.utils.parametrizations.spectral_norm
    critic = nn.Sequential(norm(nn.Linear(64, 64)), nn.LeakyReLU(0.1, True), norm(nn.Linear(64, 1)))

    def step(nets: nn.ModuleDict, real: torch.Tensor, noise: torch.Tensor) -> object:
        fake = nets["generator"](noise)
        loss = F.relu(1 - nets["critic"](real)).mean() + F.relu(1 + nets["critic"](fake)).mean()
        loss.backward()
        return loss

    nets = nn.ModuleDict({"critic": critic, "generator": mlp(8, 64, 64, activation=nn.ReLU)})
    return Program(nets, (torch.randn(16 + k, 64), torch.randn(16 + k, 8)), step)


class _Path(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mapping, self.synthesis = mlp(16, 32, 32, activation=nn.SiLU), mlp(32, 64, 64, activation=nn.SiLU)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w = self.mapping(z)
        return self.synthesis(w), w


@program
def path_length(k: int) -> Program:
    """StyleGAN2's regularizer: the gradient of an image by the latent variable that the generator computed."""

    def step(net: nn.Module, z: torch.Tensor, noise: torch.Tensor) -> object:
        image, w = net(z)
        slope = torch.autograd.grad((image * noise).sum(), w, create_graph=True)[0]
        length = slope.square().sum(1).sqrt()
        net.mean.lerp_(length.mean().detach(), 0.01)
        loss = (length - net.mean).square().mean()
        loss.backward()
        return loss, net.mean

    return Program(_Path(), (torch.randn(8 + k, 16), torch.randn(8 + k, 64)), step)


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(True), nn.Flatten(), nn.Linear(512, 32))
        self.decoder = nn.Sequential(nn.Linear(16, 512), nn.ReLU(True), nn.Unflatten(1, (8, 8, 8)))
        self.out = nn.ConvTranspose2d(8, 1, 4, 2, 1)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + noise * torch.exp(0.5 * log_variance)
        return self.out(self.decoder(z)), mean, log_variance


@program
def variational_autoencoder(k: int) -> Program:
    """Reconstruction and divergence; the noise is an input."""

    def step(net: nn.Module, x: torch.Tensor, noise: torch.Tensor) -> object:
        found, mean, log_variance = net(x, noise)
        reconstruction = F.binary_cross_entropy_with_logits(found, x, reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        loss = (reconstruction + divergence) / len(x)
        loss.backward()
        return loss

    return Program(_VAE(), (torch.rand(8 + k, 1, 16, 16), torch.randn(8 + k, 16)), step)


class _Quantizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(True), nn.Conv2d(16, 8, 3, 1, 1))
        self.codes = nn.Embedding(32, 8)
        self.decoder = nn.Sequential(nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU(True), nn.ConvTranspose2d(16, 3, 4, 2, 1))
        self.register_buffer("usage", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.encoder(x).permute(0, 2, 3, 1)
        flat = z.reshape(-1, 8)
        codes = self.codes.weight
        distance = flat.square().sum(1, keepdim=True) + codes.square().sum(1) - 2 * flat @ codes.t()
        index = distance.argmin(1)
        q = self.codes(index).view_as(z)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(q.detach(), z)
        self.usage.mul_(0.99).add_(F.one_hot(index, 32).to(x.dtype).sum(0), alpha=0.01)
        q = z + (q - z).detach()
        return F.mse_loss(self.decoder(q.permute(0, 3, 1, 2)), x) + loss


@program
def vq_vae(k: int) -> Program:
    """The nearest vector of a code book, straight-through, with its usage kept in a buffer."""
    return Program(_Quantizer(), (torch.randn(4 + k, 3, 16, 16),), loss_step)


class _Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.net, self.flip = mlp(2, 32, 4, activation=nn.ReLU), flip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x.chunk(2, 1)
        a, b = (b, a) if self.flip else (a, b)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        b = b * torch.exp(scale) + shift
        return torch.cat((b, a) if self.flip else (a, b), 1), scale.sum(1)


class _RealNVP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Coupling(bool(i % 2)) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        volume = x.new_zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            volume += change
        return -(-0.5 * x.square().sum(1) - x.shape[1] / 2 * math.log(2 * math.pi) + volume).mean()


@program
def real_nvp(k: int) -> Program:
    """A normalizing flow by affine couplings."""
    return Program(_RealNVP(), (torch.randn(64 + 8 * k, 4),), loss_step)


class _Glow(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor(0, dtype=torch.uint8))
        self.log_scale, self.shift = nn.Parameter(torch.zeros(1, channels, 1, 1)), nn.Parameter(torch.zeros(1, channels, 1, 1))  # fmt: skip
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.net = nn.Sequential(nn.Conv2d(4, 16, 3, 1, 1), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ready == 0:
            with torch.no_grad():
                self.shift.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.log_scale.copy_(-x.std((0, 2, 3), keepdim=True).log())
                self.ready.fill_(1)
        pixels = x.shape[2] * x.shape[3]
        x = (x + self.shift) * self.log_scale.exp()
        volume = self.log_scale.sum() * pixels + torch.linalg.slogdet(self.weight)[1] * pixels
        x = F.conv2d(x, self.weight[:, :, None, None])
        a, b = x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(scale + 2)
        b = (b + shift) * scale
        z = torch.cat([a, b], 1)
        return (0.5 * z.square().flatten(1).sum(1) - volume - scale.log().flatten(1).sum(1)).mean()


@program
def glow(k: int) -> Program:
    """Activation normalization that initializes itself at the first batch, and an invertible convolution."""
    return Program(_Glow(), (torch.randn(4 + k, 8, 8, 8),), loss_step)


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(inplace=True), nn.Linear(32, 32))
        self.first, self.second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(8, 32), nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(10000) * torch.arange(8, device=x.device) / 8)
        angles = t[:, None].to(x.dtype) * frequencies[None].to(x.dtype)
        emb = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h = F.silu(self.first(x)) + emb[:, :, None, None]
        return self.last(F.silu(self.norm(self.second(h))) + h)


@program
def ddpm(k: int) -> Program:
    """Noise is predicted at drawn times; the schedule is a table."""
    betas = torch.linspace(1e-4, 0.02, 100)
    table = torch.cumprod(1 - betas, 0)

    def step(net: nn.Module, x: torch.Tensor, t: torch.Tensor, noise: torch.Tensor) -> object:
        alpha = table.to(x.dtype)[t][:, None, None, None]
        loss = F.mse_loss(net(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t), noise)
        loss.backward()
        return loss

    n = 4 + k
    inputs = (torch.randn(n, 1, 16, 16), torch.randint(0, 100, (n,)), torch.randn(n, 1, 16, 16))
    return Program(_Denoiser(), inputs, step)


@program
def sliced_score_matching(k: int) -> Program:
    """A network of energies, whose score's Hessian is sampled along directions."""

    def step(net: nn.Module, x: torch.Tensor, v: torch.Tensor) -> object:
        x = x.clone().requires_grad_()
        score = torch.autograd.grad(-net(x).sum(), x, create_graph=True)[0]
        along = torch.autograd.grad((score * v).sum(), x, create_graph=True)[0]
        loss = ((along * v).sum(1) + 0.5 * score.square().sum(1)).mean()
        loss.backward()
        return loss

    return Program(mlp(8, 32, 32, 1, activation=nn.Softplus), (torch.randn(32 + k, 8), torch.randn(32 + k, 8)), step)


@program
def flow_matching(k: int) -> Program:
    """A velocity between noise and data, with an average of weights beside the network."""

    def step(nets: nn.ModuleDict, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> object:
        loss = F.mse_loss(nets["net"](torch.cat([(1 - t) * noise + t * x, t], 1)), x - noise)
        loss.backward()
        with torch.no_grad():
            for mean, new in zip(nets["average"].parameters(), nets["net"].parameters()):
                mean.lerp_(new, 0.1)
            judged = F.mse_loss(nets["average"](torch.cat([noise, 0 * t], 1)), x - noise)
        return loss, judged

    nets = nn.ModuleDict({"net": mlp(9, 64, 8, activation=nn.SiLU), "average": mlp(9, 64, 8, activation=nn.SiLU)})
    return Program(nets, (torch.randn(32 + k, 8), torch.randn(32 + k, 8), torch.rand(32 + k, 1)), step)


class _PixelCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 8, 1)  # fmt: skip
        for conv, own in ((self.first, 0), (self.second, 1)):
            mask = torch.ones_like(conv.weight)
            middle = conv.kernel_size[0] // 2
            mask[:, :, middle, middle + own :] = 0
            mask[:, :, middle + 1 :] = 0
            conv.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.first, self.second):
            conv.weight.data *= conv.mask
            x = F.relu(conv(x), inplace=True)
        return self.last(x)


@program
def pixel_cnn(k: int) -> Program:
    """Masked convolutions that write zeros into their own weights at each call."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> object:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return Program(_PixelCNN(), (torch.rand(4 + k, 1, 12, 12), torch.randint(0, 8, (4 + k, 12, 12))), step)
