"""Random networks of images through the recipe ``cpu``, whose layouts are searched: compiled, forward and backward."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dace
import pytest

from daceopt.ir.graph.graph import Graph
from daceopt.libs.convolution_times import Times
from daceopt.transformations.layout import _layout_costs
from daceopt.transformations.layout.layout_search import LayoutSearch
from tests.properties.graph_checking import Case, failures

F = dace.float32
Shape = tuple[int, int, int, int]
WEIGHTS = "w"  # how names of weights begin


class Images:
    """Convolutions, pools, sums, concatenations, and rows of channels, drawn at random."""

    def __init__(self, seed: int, channels: tuple[int, int] = (4, 8)):
        self._draw, self.graph = random.Random(seed), Graph(f"images_{seed}")
        self.graph.source.opset[""] = 21
        self._channels = channels
        self._found = [self._input((2, channels[0], 6, 6))]
        for _ in range(7):
            x = self._draw.choice(self._found[-3:])
            self._found.append(self._draw.choice((self.conv, self.conv, self.relu, self.add, self.pool, self.rows))(x))
        unread = [n for n in self._found if n not in self.graph.inputs and not self.graph.all_consumers(n)]
        for name in unread:
            self.graph.add_output(name)

    def _input(self, shape: tuple[int, ...]) -> str:
        return self.graph.add_input("x", shape, F)

    def _weights(self, shape: tuple[int, ...]) -> str:
        return self.graph.add_input(WEIGHTS, shape, F)

    def _op(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> str:
        out = self.graph.add_array(op_type, shape, F)
        self.graph.add_operator(op_type, inputs, [out], attributes)
        return out

    def _shape(self, x: str) -> Shape:
        return self.graph.shape(x)  # type: ignore[return-value]

    def conv(self, x: str) -> str:
        n, c, *image = self._shape(x)
        group, out = self._draw.choice((*((1, n) for n in self._channels), (c, c)))
        w = self._weights((out, c // group, 3, 3))
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
        out = self._channels[0]
        mixed = self._op("MatMul", [turned, self._weights((c, out))], (n, h, w, out))
        return self._op("Transpose", [mixed], (n, out, h, w), perm=[0, 3, 1, 2])


@dataclass(frozen=True)
class ImageCase(Case):
    """A network of images by its seed."""

    def graph(self) -> Graph:
        return Images(self.seed).graph

    def deviation(self, name: str, shape: Sequence[int]) -> float:
        """Weights keep the variance of what they multiply, as initialization sees to it."""
        summed = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
        return summed**-0.5 if name.startswith(WEIGHTS) else 1.0


@dataclass(frozen=True)
class WideCase(ImageCase):
    """One whose images have whole blocks of channels, but for some."""

    def graph(self) -> Graph:
        return Images(self.seed, (16, 24 if self.seed % 3 else 32)).graph


def test_random_networks_of_images() -> None:
    cases = [ImageCase(seed, "images", backward=True) for seed in range(6)]
    found = failures(cases)
    assert not found, f"{len(found)} of {len(cases)} networks:\n" + "\n".join(found[:5])


def test_random_networks_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where convolutions take the less time the more of them work in blocks."""
    blocks: list[str] = []
    apply = LayoutSearch.apply
    monkeypatch.setattr(_layout_costs, "times", lambda *_: Times(3e-3, 2e-3, 1e-3))
    monkeypatch.setattr(
        LayoutSearch, "apply", lambda step, site: (blocks.extend(site.found.get("blocks", ())), apply(step, site))
    )
    cases = [WideCase(seed, "images", backward=True) for seed in range(1, 5)]
    found = failures(cases)
    assert not found, f"{len(found)} of {len(cases)} networks:\n" + "\n".join(found[:5])
    assert len(blocks) > 2 * len(cases)
