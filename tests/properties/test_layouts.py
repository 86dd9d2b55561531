"""Random networks of images through the recipe ``cpu``, whose layouts are searched: compiled, forward and backward."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import dace

from daceopt.ir.graph import Graph
from tests.properties.graph_checking import Case, failures

F = dace.float32
Shape = tuple[int, int, int, int]


class Images:
    """Convolutions, pools, sums, concatenations, and rows of channels, drawn at random."""

    def __init__(self, seed: int):
        self._draw, self.graph = random.Random(seed), Graph(f"images_{seed}")
        self.graph.source.opset[""] = 21
        self._found = [self._input((2, 4, 6, 6))]
        for _ in range(7):
            x = self._draw.choice(self._found[-3:])
            self._found.append(self._draw.choice((self.conv, self.conv, self.relu, self.add, self.pool, self.rows))(x))
        unread = [n for n in self._found if n not in self.graph.inputs and not self.graph.all_consumers(n)]
        for name in unread:
            self.graph.add_output(name)

    def _input(self, shape: tuple[int, ...]) -> str:
        return self.graph.add_input("x", shape, F)

    def _op(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        out = self.graph.add_array(op_type, shape, F)
        self.graph.add_operator(op_type, inputs, [out], attributes)
        return out

    def _shape(self, x: str) -> Shape:
        return self.graph.shape(x)  # type: ignore[return-value]

    def conv(self, x: str) -> str:
        n, c, *image = self._shape(x)
        group, out = self._draw.choice(((1, 4), (1, 8), (c, c)))
        w = self._input((out, c // group, 3, 3))
        return self._op("Conv", [x, w], (n, out, *image), pads=[1] * 4, group=group)

    def relu(self, x: str) -> str:
        return self._op("Tanh", [x], self._shape(x))

    def add(self, x: str) -> str:
        others = [y for y in self._found if self._shape(y) == self._shape(x)]
        return self._op("Mul", [x, self._draw.choice(others)], self._shape(x))

    def pool(self, x: str) -> str:
        n, c, h, w = self._shape(x)
        if h % 2 or w % 2:
            return self.relu(x)
        kind = self._draw.choice(("MaxPool", "AveragePool"))
        return self._op(kind, [x], (n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])

    def rows(self, x: str) -> str:
        """As in ConvNeXt: channels last, a product of each row of them, and back."""
        n, c, h, w = self._shape(x)
        turned = self._op("Transpose", [x], (n, h, w, c), perm=[0, 2, 3, 1])
        mixed = self._op("MatMul", [turned, self._input((c, 4))], (n, h, w, 4))
        return self._op("Transpose", [mixed], (n, 4, h, w), perm=[0, 3, 1, 2])


@dataclass(frozen=True)
class ImageCase(Case):
    """A network of images by its seed."""

    def graph(self) -> Graph:
        return Images(self.seed).graph


def test_random_networks_of_images() -> None:
    cases = [ImageCase(seed, "images", backward=True) for seed in range(12)]
    found = failures(cases)
    assert not found, f"{len(found)} of {len(cases)} networks:\n" + "\n".join(found[:5])
