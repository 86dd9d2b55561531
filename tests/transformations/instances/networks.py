"""Networks as graphs of kernels and library nodes, in the sizes that the tests want."""

from __future__ import annotations

from collections.abc import Sequence

import dace
import sympy

from daceopt.ir.graph.graph import Graph
from daceopt.ir.nodes import library
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.scalar import scalar

F = dace.float32


class Network:
    """A graph that grows layer by layer; weights are inputs."""

    def __init__(self, *shape: int):
        self.graph = Graph("network")
        self.b = Builder(self.graph, "v")
        self.dtype = F
        self.x = self.graph.add_input("x", shape, F)

    def shape(self, x: str) -> tuple[int, ...]:
        return tuple(int(n) for n in self.graph.shape(x))

    def conv(self, x: str, channels: int, kernel: int = 1, stride: int = 1, group: int = 1) -> str:
        """With a bias, as what batch normalization becomes in inference."""
        batch, own, *image = self.shape(x)
        pad = (kernel - 1) // 2
        w = self.graph.add_input("w", (channels, own // group, *[kernel] * len(image)), F)
        bias = self.graph.add_input("bias", (channels,), F)
        out = [(n + 2 * pad - kernel) // stride + 1 for n in image]
        y = self.graph.add_array("conv", (batch, channels, *out), F)
        settings = {"strides": [stride] * len(image), "pads": [pad] * 2 * len(image), "group": group}
        node = library.Convolution("conv", inputs=["X", "W", "B"], outputs=["Y"], **settings)
        self.graph.add_node(node, {"X": x, "W": w, "B": bias}, {"Y": y})
        return y

    def pool(self, x: str, kernel: int, stride: int) -> str:
        batch, channels, *image = self.shape(x)
        pad = (kernel - 1) // 2
        out = [(n + 2 * pad - kernel) // stride + 1 for n in image]
        y = self.graph.add_array("pool", (batch, channels, *out), F)
        pads, strides = [pad] * 2 * len(image), [stride] * len(image)
        node = library.Pool(
            "pool", inputs=["X"], outputs=["Y"], kernel=[kernel] * len(image), strides=strides, pads=pads
        )
        self.graph.add_node(node, {"X": x}, {"Y": y})
        return y

    def relu(self, x: str) -> str:
        return self.b.elementwise(lambda v: scalar.maximum(v, 0), x)

    def add_relu(self, x: str, y: str) -> str:
        return self.b.elementwise(lambda v, w: scalar.maximum(v + w, 0), x, y)

    def linear(self, x: str, features: int) -> str:
        return self.b.matmul(x, self.graph.add_input("w", (self.shape(x)[-1], features), F))

    def up(self, x: str) -> str:
        """Nearest neighbours, twice as high and wide."""
        batch, channels, height, width = self.shape(x)
        wide = self.b.expand(self.b.unsqueeze(x, [3, 5]), (batch, channels, height, 2, width, 2))
        return self.b.reshape(self.b.copy(wide), (batch, channels, 2 * height, 2 * width))

    def done(self, *outputs: str) -> Graph:
        for name in outputs:
            self.graph.add_output(self.b.copy(name) if self.graph.is_view(name) else name)
        return self.graph


def bottleneck(net: Network, x: str, width: int, stride: int, project: bool) -> str:
    """A conv block (with ``project``) or an identity block of ResNet-50 v1.5."""
    y = net.relu(net.conv(x, width))
    y = net.relu(net.conv(y, width, 3, stride))
    y = net.conv(y, 4 * width)
    return net.add_relu(y, net.conv(x, 4 * width, 1, stride) if project else x)


def resnet(batch: int, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, size: int = 224) -> Graph:
    """ResNet-50 v1.5 of 224x224 images in inference."""
    net = Network(batch, 3, size, size)
    x = net.pool(net.relu(net.conv(net.x, width, 7, 2)), 3, 2)
    for stage, count in enumerate(blocks):
        for k in range(count):
            x = bottleneck(net, x, width << stage, 2 if stage and not k else 1, not k)
    x = net.b.reduce("sum", None, x, axes=(2, 3))
    return net.done(net.linear(x, 1000))


def stages(batch: int = 8, features: int = 64, count: int = 4) -> Graph:
    """Figure 3(a): ``count`` stages, each of which begins with half of what the one before it gives (S = 2)."""
    net = Network(batch, features)
    x = net.b.elementwise(lambda v: v * 2, net.x)
    for k in range(count):
        if k:
            half = net.shape(x)[1] // 2
            first, second = (net.b.slice(x, [i * half], [(i + 1) * half], axes=[1]) for i in range(2))
            x = net.b.elementwise(lambda v, w: v + w, first, second)
        x = net.b.elementwise(lambda v: sympy.tanh(v), x)
    return net.done(x)
