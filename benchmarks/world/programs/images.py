"""Images, scenes and points: detection, segmentation, rendering, representations without labels."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.world.catalogue import program
from benchmarks.world.program import Program
from benchmarks.world.programs.sciences import loss_step, mlp, mse_step


def _conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.1, inplace=True))  # fmt: skip


class _Detector(nn.Module):
    """A grid of boxes; targets are matched to cells by their centres."""

    def __init__(self, kinds: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 8, 2), _conv(8, 16, 2), _conv(16, 32, 2))
        self.head, self.kinds, self.seen = nn.Conv2d(32, 5 + kinds, 1), kinds, 0

    def forward(self, images: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        y = self.head(self.body(images)).permute(0, 2, 3, 1)
        height, width = y.shape[1:3]
        at, center = boxes[:, 0].long(), boxes[:, 1:3] * torch.tensor([width, height], dtype=boxes.dtype)
        column, row = center.long().unbind(1)
        found = y[at, row.clamp(0, height - 1), column.clamp(0, width - 1)]
        offset, size = torch.sigmoid(found[:, :2]), found[:, 2:4]
        place = F.mse_loss(offset, center - center.floor()) + F.mse_loss(size, torch.log(boxes[:, 3:5] + 1e-3))
        truth = torch.zeros_like(y[..., 4])
        truth[at, row.clamp(0, height - 1), column.clamp(0, width - 1)] = 1.0
        there = F.binary_cross_entropy_with_logits(y[..., 4], truth)
        return place + there + F.cross_entropy(found[:, 5:], labels)


@program
def yolo(k: int) -> Program:
    """A one-stage detector with inplace activations, a counter of images, and as many boxes as there are."""
    count = 5 + 2 * k
    boxes = torch.cat([torch.randint(0, 2, (count, 1)).float(), torch.rand(count, 4) * 0.9], 1)
    return Program(_Detector(), (torch.randn(2, 3, 64, 64), boxes, torch.randint(0, 3, (count,))), loss_step)


class _Pairs(nn.Module):
    """DETR's set loss: objects are matched by their costs, greedily on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.queries = nn.Sequential(_conv(3, 8, 2), _conv(8, 32, 2)), nn.Embedding(8, 32)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.kind, self.box = nn.Linear(32, 4), mlp(32, 32, 4, activation=nn.ReLU)

    def forward(self, image: torch.Tensor, kinds: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        memory = self.body(image).flatten(2).transpose(1, 2)
        h = self.decoder(self.queries.weight[None], memory)[0]
        scores, found = self.kind(h), self.box(h).sigmoid()
        with torch.no_grad():
            cost = (torch.cdist(found, boxes, p=1) - scores.softmax(-1)[:, kinds]).tolist()
        chosen: list[int] = []
        for j in range(len(boxes)):
            free = [i for i in range(len(cost)) if i not in chosen]
            chosen.append(min(free, key=lambda i: cost[i][j]))
        target = torch.full((8,), 3)
        target[chosen] = kinds
        return F.cross_entropy(scores, target) + F.l1_loss(found[chosen], boxes)


@program
def detection_by_sets(k: int) -> Program:
    """Queries, matched on the host."""
    inputs = (torch.randn(1, 3, 32, 32 + 8 * k), torch.randint(0, 3, (3,)), torch.rand(3, 4))
    return Program(_Pairs(), inputs, loss_step)


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.ModuleList([_conv(1, 8), _conv(8, 16)]), _conv(16, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.join, self.out = nn.ModuleList([_conv(32, 16), _conv(16, 8)]), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.out(x)


@program
def unet_segmentation(k: int) -> Program:
    """Dice and cross entropy."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> object:
        scores = net(x)
        p, truth = scores.softmax(1)[:, 1], (y == 1).to(x.dtype)
        dice = 1 - (2 * (p * truth).sum((1, 2)) + 1) / (p.sum((1, 2)) + truth.sum((1, 2)) + 1)
        loss = F.cross_entropy(scores, y) + dice.mean()
        loss.backward()
        return loss

    return Program(_UNet(), (torch.randn(2 + k, 1, 32, 32), torch.randint(0, 2, (2 + k, 32, 32))), step)


class _PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform, self.turn = self._shared(3, 32, 64), mlp(64, 32, 9, activation=nn.ReLU)
        self.body, self.head = self._shared(3, 32, 128), mlp(128, 64, 5, activation=nn.ReLU)

    @staticmethod
    def _shared(*widths: int) -> nn.Sequential:
        pairs = pairwise(widths)
        return nn.Sequential(*(m for a, b in pairs for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU(inplace=True))))  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turn = self.turn(self.transform(x).max(2)[0]).view(-1, 3, 3) + torch.eye(3, dtype=x.dtype)
        h = self.body(torch.bmm(turn, x))
        return self.head(torch.max(h, 2, keepdim=True)[0].flatten(1)), turn


@program
def point_net(k: int) -> Program:
    """Clouds of points, aligned by a learned transform that is kept near orthogonal."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> object:
        scores, turn = net(x)
        eye = torch.eye(3, dtype=x.dtype)
        loss = F.cross_entropy(scores, y) + 0.001 * (turn @ turn.transpose(1, 2) - eye).norm(dim=(1, 2)).mean()
        loss.backward()
        return loss

    return Program(_PointNet(), (torch.randn(8, 3, 64 + 16 * k), torch.randint(0, 5, (8,))), step)


class _Radiance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.density, self.colour = mlp(27, 64, 64, 33, activation=nn.ReLU), mlp(35, 32, 3, activation=nn.ReLU)

    def forward(self, origins: torch.Tensor, directions: torch.Tensor, jitter: torch.Tensor) -> torch.Tensor:
        depths = torch.linspace(2, 6, 16, dtype=origins.dtype) + jitter * 0.25
        points = origins[:, None] + directions[:, None] * depths[..., None]
        bands = 2.0 ** torch.arange(4, dtype=origins.dtype) * math.pi
        waves = (points[..., None] * bands).flatten(-2)
        h = self.density(torch.cat([points, waves.sin(), waves.cos()], -1))
        colour = torch.sigmoid(self.colour(torch.cat([h[..., 1:], directions[:, None].expand_as(points)], -1)))
        steps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], 1)
        alpha = 1 - torch.exp(-F.relu(h[..., 0]) * steps)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * through)[..., None] * colour).sum(1)


@program
def radiance_field(k: int) -> Program:
    """NeRF: densities and colours along rays, composited."""

    def step(net: nn.Module, origins: torch.Tensor, rays: torch.Tensor, jitter: torch.Tensor, seen: torch.Tensor) -> object:  # fmt: skip
        loss = F.mse_loss(net(origins, rays, jitter), seen)
        loss.backward()
        return -10 * torch.log10(loss.detach())

    n = 64 + 16 * k
    inputs = (torch.randn(n, 3) * 0.1, F.normalize(torch.randn(n, 3), dim=1), torch.rand(n, 16), torch.rand(n, 3))
    return Program(_Radiance(), inputs, step)


class _Sine(nn.Module):
    def __init__(self, before: int, after: int, omega: float, first: bool = False) -> None:
        super().__init__()
        self.linear, self.omega = nn.Linear(before, after), omega
        with torch.no_grad():
            bound = 1 / before if first else math.sqrt(6 / before) / omega
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.omega * self.linear(x))


@program
def siren(k: int) -> Program:
    """A picture as a function of sines, fitted by its gradients."""

    def step(net: nn.Module, x: torch.Tensor, slope: torch.Tensor) -> object:
        x = x.clone().detach().requires_grad_(True)
        y = net(x)
        found = torch.autograd.grad(y, [x], grad_outputs=torch.ones_like(y), create_graph=True)[0]
        loss = (found - slope).pow(2).sum(-1).mean()
        loss.backward()
        return loss

    net = nn.Sequential(_Sine(2, 32, 10.0, True), _Sine(32, 32, 10.0), nn.Linear(32, 1))
    return Program(net, (torch.rand(128 + 32 * k, 2), torch.randn(128 + 32 * k, 2)), step)


class _Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 16, 5, 2), nn.Conv2d(16, 32, 5, 2)
        self.weight = nn.Parameter(0.1 * torch.randn(1, 36, 4, 8, 8))

    @staticmethod
    def squash(x: torch.Tensor) -> torch.Tensor:
        norm = x.norm(dim=-1, keepdim=True)
        return norm / (1 + norm**2) * x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.primary(F.relu(self.conv(x), inplace=True))
        h = self.squash(h.view(len(x), -1, 8))
        votes = (self.weight @ h[:, :, None, :, None]).squeeze(-1)
        frozen, logits = votes.detach(), torch.zeros(*votes.shape[:3], 1, dtype=x.dtype)
        for _ in range(2):
            out = self.squash((logits.softmax(2) * frozen).sum(1, keepdim=True))
            logits = logits + (frozen * out).sum(-1, keepdim=True)
        return self.squash((logits.softmax(2) * votes).sum(1))


@program
def capsules(k: int) -> Program:
    """Routing by agreement, and the margin loss."""

    def step(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> object:
        length = net(x).norm(dim=-1)
        truth = F.one_hot(y, 4).to(x.dtype)
        loss = (truth * F.relu(0.9 - length) ** 2 + 0.5 * (1 - truth) * F.relu(length - 0.1) ** 2).sum(1).mean()
        loss.backward()
        return loss, (length.argmax(1) == y).sum()

    return Program(_Capsules(), (torch.randn(4 + k, 1, 21, 21), torch.randint(0, 4, (4 + k,))), step)


@program
def siamese_triplets(k: int) -> Program:
    """One network thrice; the hardest negatives of the batch are chosen by their distance."""

    def step(net: nn.Module, a: torch.Tensor, b: torch.Tensor) -> object:
        za, zb = F.normalize(net(a)), F.normalize(net(b))
        distance = torch.cdist(za, zb)
        positive = distance.diagonal()
        eye = torch.eye(len(a), dtype=torch.bool)
        negative = distance.masked_fill(eye, float("inf")).min(1)[0]
        loss = F.relu(positive - negative + 0.3).mean()
        loss.backward()
        return loss

    net = nn.Sequential(_conv(1, 8, 2), _conv(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 16))
    return Program(net, (torch.randn(8 + k, 1, 16, 16), torch.randn(8 + k, 1, 16, 16)), step)


class _Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(_conv(3, 8, 2), _conv(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32))  # fmt: skip
        self.words, self.layer = nn.Embedding(50, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        a = F.normalize(self.image(image), dim=-1)
        h = self.layer(self.words(text), src_key_padding_mask=text == 0)
        b = F.normalize(h[torch.arange(len(text)), text.argmax(-1)], dim=-1)
        return self.scale.exp().clamp(max=100) * a @ b.t()


@program
def clip(k: int) -> Program:
    """Images and texts, contrasted in both directions."""

    def step(net: nn.Module, image: torch.Tensor, text: torch.Tensor) -> object:
        scores, own = net(image, text), torch.arange(len(image))
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.t(), own)) / 2
        loss.backward()
        return loss

    return Program(_Clip(), (torch.randn(6 + k, 3, 16, 16), torch.randint(1, 50, (6 + k, 8))), step)


class _BYOL(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, 16))
        self.target, self.predictor = copy.deepcopy(self.online), mlp(16, 32, 16, activation=nn.ReLU)
        for parameter in self.target.parameters():
            parameter.requires_grad = False
        self.step = 0

    @torch.no_grad()
    def update(self) -> None:
        self.step += 1
        rate = 1 - 0.01 * (math.cos(math.pi * self.step / 1000) + 1) / 2
        for mean, new in zip(self.target.parameters(), self.online.parameters()):
            mean.data = mean.data * rate + new.data * (1 - rate)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            self.update()
            ta, tb = self.target(a).detach(), self.target(b).detach()
        return (4 - 2 * F.cosine_similarity(pa, tb) - 2 * F.cosine_similarity(pb, ta)).mean()


@program
def byol(k: int) -> Program:
    """A target that follows by a momentum which changes with a counter, inside of forward."""
    return Program(_BYOL(), (torch.randn(16 + k, 32), torch.randn(16 + k, 32)), loss_step)


@program
def contrastive(k: int) -> Program:
    """SimCLR's loss over two views."""

    def step(net: nn.Module, a: torch.Tensor, b: torch.Tensor) -> object:
        z = F.normalize(net(torch.cat([a, b])), dim=1)
        scores = (z @ z.t() / 0.5).fill_diagonal_(-1e9)
        n = len(a)
        loss = F.cross_entropy(scores, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))
        loss.backward()
        return loss

    return Program(mlp(32, 64, 16, activation=nn.ReLU), (torch.randn(16 + k, 32), torch.randn(16 + k, 32)), step)


class _Renderer(nn.Module):
    def __init__(self, count: int = 12) -> None:
        super().__init__()
        self.mean, self.log_scale = nn.Parameter(torch.rand(count, 2)), nn.Parameter(torch.full((count, 2), -2.0))
        self.colour, self.opacity = nn.Parameter(torch.rand(count, 3)), nn.Parameter(torch.zeros(count))
        self.angle, self.depth = nn.Parameter(torch.rand(count)), nn.Parameter(torch.rand(count))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        order = self.depth.argsort()
        sine, cosine = self.angle.sin(), self.angle.cos()
        turn = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
        local = torch.einsum("nij,pnj->pni", turn, places[:, None] - self.mean) / self.log_scale.exp()
        alpha = torch.sigmoid(self.opacity) * torch.exp(-0.5 * local.square().sum(-1))
        alpha = alpha[:, order].clamp(max=0.99)
        through = torch.cumprod(F.pad(1 - alpha, (1, 0), value=1.0), 1)[:, :-1]
        return (alpha * through) @ torch.sigmoid(self.colour[order])


@program
def splatting(k: int) -> Program:
    """A picture of Gaussians, sorted by depth and blended."""
    side = 12 + 2 * k
    places = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij"), -1).view(-1, 2)
    return Program(_Renderer(), (places, torch.rand(side * side, 3)), mse_step)
