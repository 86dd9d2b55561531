"""What statements of a random program are drawn from: the tensors that there are, and choices that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")
SIZES = (1, 2, 3, 5, 8)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Impossible(Exception):
    """No tensor fits; another statement is drawn."""


class Drawing:
    """Choices for one statement. ``tensors``: the values of the names so far; ``setup``: what ``__init__`` needs."""

    def __init__(self, rng: random.Random, tensors: Mapping[str, torch.Tensor]) -> None:
        self.rng, self.tensors = rng, tensors
        self.setup: list[str] = []

    def choice(self, options: Sequence[T]) -> T:
        if not options:
            raise Impossible
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def seed(self) -> int:
        return self.rng.randrange(10**6)

    def pick(self, fits: Callable[[torch.Tensor], Any] = lambda t: True) -> str:
        """A name; later ones are likelier, so that programs are deep."""
        names = [n for n, t in self.tensors.items() if fits(t)]
        if not names:
            raise Impossible
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def floating(self, rank: int = 0, fits: Callable[[torch.Tensor], Any] = lambda t: True) -> str:
        """A name of a floating tensor of at least this rank."""
        return self.pick(lambda t: t.dtype in FLOATS and t.dim() >= rank and fits(t))

    def axis(self, name: str, fits: Callable[[int], Any] = lambda n: True) -> int:
        """An axis, counted from either end."""
        shape = self.tensors[name].shape
        axis = self.choice([k for k, n in enumerate(shape) if fits(n)])
        return axis - len(shape) if self.chance(0.4) else axis

    def axes(self, name: str) -> tuple[int, ...]:
        """Some axes, at least one."""
        rank = self.tensors[name].dim()
        if not rank:
            raise Impossible
        return tuple(sorted(self.rng.sample(range(rank), self.rng.randint(1, rank))))

    def number(self) -> str:
        return self.choice(("2", "0.5", "-1.5", "3", "1", "0.3", "-2"))

    def flag(self) -> str:
        return self.choice(("True", "False"))

    def parameter(self, *shape: int, dtype: torch.dtype = torch.float32) -> str:
        """A new parameter of the module, or an old one of this shape a second time."""
        name = f"p{self.seed()}"
        kept = "nn.Parameter({})" if self.chance(0.9) else "{}.detach()"
        if kept.startswith("nn"):
            self.setup.append(f"self.{name} = nn.Parameter({made(self.seed(), shape, dtype)})")
        else:
            self.setup.append(f'self.register_buffer("{name}", {made(self.seed(), shape, dtype)})')
        return f"self.{name}"

    def module(self, text: str, *, training: bool = True) -> str:
        """A new submodule."""
        name = f"m{self.seed()}"
        self.setup.append(f"self.{name} = {text}{'' if training else '.eval()'}")
        return f"self.{name}"

    def indices(self, *shape: int, below: int) -> str:
        """A new buffer of indices."""
        if below < 1:
            raise Impossible
        name = f"i{self.seed()}"
        value = f"draw({self.seed()}, {_listed(shape)}dtype=torch.int64, low=0, high={below})"
        self.setup.append(f'self.register_buffer("{name}", {value})')
        return f"self.{name}"

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        kept = [1 if self.chance(0.2) else n for n in shape]
        return tuple(kept[self.rng.randint(0, len(kept)) :] if self.chance(0.4) else kept)

    def operand(self, name: str, *, same: bool = False) -> str:
        """What ``name`` can be combined with; ``same``: so that the result has its shape and type."""
        tensor = self.tensors[name]
        if self.chance(0.25):
            return self.number() if tensor.dtype in FLOATS else self.choice(("1", "2", "-3"))
        if self.chance(0.3) and tensor.dtype in FLOATS:
            return self.parameter(*self.broadcastable(tensor.shape), dtype=tensor.dtype if same else torch.float32)
        return self.pick(lambda t: t.dtype != torch.bool and _combine(tensor, t, same))

    def mask(self, name: str) -> str:
        """Flags that broadcast to ``name``."""
        tensor = self.tensors[name]
        fitting = [n for n, t in self.tensors.items() if t.dtype == torch.bool and _combine(tensor, t, True)]
        if fitting and self.chance(0.5):
            return self.choice(fitting)
        if tensor.dtype != torch.bool and self.chance(0.5):
            return f"({name} {self.choice(('>', '<', '>='))} {self.choice(('0.1', '-0.3', '0'))})"
        return self.parameter_of_flags(self.broadcastable(tensor.shape))

    def parameter_of_flags(self, shape: Sequence[int]) -> str:
        name = f"c{self.seed()}"
        self.setup.append(f'self.register_buffer("{name}", {made(self.seed(), shape, torch.bool)})')
        return f"self.{name}"


def _combine(a: torch.Tensor, b: torch.Tensor, same: bool) -> bool:
    try:
        shape = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    kind = b.dtype == torch.bool or torch.result_type(a, b) == a.dtype
    return (shape == a.shape and kind) if same else shape.numel() <= 2000


def made(seed: int, shape: Sequence[int], dtype: torch.dtype) -> str:
    """The expression of a new tensor."""
    return f"draw({seed}, {_listed(shape)}dtype={dtype})"


def _listed(shape: Sequence[int]) -> str:
    return "".join(f"{n}, " for n in shape)
