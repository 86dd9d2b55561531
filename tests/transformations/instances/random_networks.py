"""Random networks of images: windows, point-wise layers, residuals, concatenations in parts, resampling, several
outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daceopt.ir.graph.graph import Graph
from tests.transformations.instances.networks import Network


class RandomNetwork(Network):
    """Grows layer by layer from ``seed``."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        rank = self._one_of(1, 2, 2)
        image = [int(self._one_of(6, 8, 12, 16)) for _ in range(rank)]
        super().__init__(int(self._one_of(1, 2, 4, 8)), int(self._one_of(2, 4)), *image)
        self.pool_of = [self.x]

    def _one_of(self, *choices: int) -> int:
        return int(self.rng.choice(choices))

    def _pick(self) -> str:
        """Mostly one of the latest."""
        latest = self.pool_of[-3:] if self.rng.random() < 0.8 else self.pool_of
        return str(self.rng.choice(latest))

    def build(self, steps: int) -> Graph:
        layers: list[Callable[[str], str | None]] = [
            self._conv, self._conv, self._conv, self._window, self.relu, self._residual, self._concatenation,
            self._grown, self._scaled, self._transposed, self._normalized,
        ]  # fmt: skip
        while len(self.pool_of) < steps:
            made = layers[int(self.rng.integers(len(layers)))](self._pick())
            self.pool_of += [] if made is None else [made]
        last, *others = reversed(self.pool_of[1:])
        more = [n for n in others if self.rng.random() < 0.1]
        return self.done(last, *dict.fromkeys(n for n in more if n != last))

    def _conv(self, x: str) -> str | None:
        channels, *image = self.shape(x)[1:]
        kernel, stride = self._one_of(1, 1, 3, 3, 5), self._one_of(1, 1, 1, 2)
        if min(image) < 4:
            return None
        group = 2 if channels % 2 == 0 and self.rng.random() < 0.2 else 1
        return self.conv(x, self._one_of(2, 4, 8), kernel, stride, group)

    def _window(self, x: str) -> str | None:
        return self.pool(x, 3, self._one_of(1, 2)) if min(self.shape(x)[2:]) >= 4 else None

    def _residual(self, x: str) -> str | None:
        same = [n for n in self.pool_of if self.shape(n) == self.shape(x) and n != x]
        return self.add_relu(x, str(self.rng.choice(same))) if same else None

    def _concatenation(self, x: str) -> str | None:
        shape = self.shape(x)
        fitting = [n for n in self.pool_of if (s := self.shape(n))[0] == shape[0] and s[2:] == shape[2:]]
        y = str(self.rng.choice(fitting))
        axis = 1 if self.rng.random() < 0.8 or self.shape(y) != shape else 0
        sizes = [self.shape(n)[axis] for n in (x, y)]
        if sum(sizes) > 16:
            return None
        whole = self.graph.add_array("whole", [sum(sizes) if k == axis else n for k, n in enumerate(shape)], self.dtype)
        for name, start in ((x, 0), (y, sizes[0])):
            starts = [start if k == axis else 0 for k in range(len(shape))]
            self.b.copy(name, out=self.graph.add_part(whole, "part", starts, self.shape(name)))
        return whole

    def _grown(self, x: str) -> str | None:
        small = len(self.shape(x)) == 4 and self.shape(x)[-1] * self.shape(x)[-2] <= 64
        return self.up(x) if small else None

    def _scaled(self, x: str) -> str:
        """By the mean of each image's channels (squeeze and excite)."""
        axes = tuple(range(2, len(self.shape(x))))
        return self.b.elementwise(lambda v, m: v * m / 64, x, self.b.reduce("sum", None, x, axes=axes, keepdims=True))

    def _transposed(self, x: str) -> str | None:
        """A view, which others read."""
        return self.b.transpose(x, (0, 1, 3, 2)) if len(self.shape(x)) == 4 else None

    def _normalized(self, x: str) -> str:
        """Over the batch: no instance of the batch has it alone."""
        return self.b.elementwise(lambda v, m: v - m / 8, x, self.b.reduce("sum", None, x, axes=(0,), keepdims=True))
