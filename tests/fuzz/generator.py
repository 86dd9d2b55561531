"""Random programs: each statement is tried in eager PyTorch, in float32 and in float64, before it stays."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from tests.fuzz import execution
from tests.fuzz.changes import CHANGES, WITHOUT_NAME
from tests.fuzz.drawing import FLOATS, INTEGERS, SIZES, Drawing, Impossible, made
from tests.fuzz.layers import LAYERS
from tests.fuzz.program import Line, Program
from tests.fuzz.several import SEVERAL
from tests.fuzz.statements import STATEMENTS

LARGEST = 2000  # elements of a tensor
BOUND = 1e3  # values beyond it lose digits
CLOSE = {
    torch.float32: 1e-4,
    torch.float64: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}  # eager's own error, relative to the largest

Family = Callable[[Drawing], Any]
Table = tuple[tuple[Family, float], ...]


@lru_cache(maxsize=256)
def program(seed: int) -> Program:
    """The program of a seed: it runs in eager PyTorch, forward and backward, and rounding changes little."""
    rng = random.Random(seed)
    while True:
        made_of = _Maker(seed, rng).make()
        if made_of is not None:
            return made_of


class _Maker:
    def __init__(self, seed: int, rng: random.Random) -> None:
        self.rng = rng
        self.length = rng.randint(3, 20)
        self.program = Program(seed, _inputs(rng))
        self.tensors: dict[str, torch.Tensor] = {}

    def make(self) -> Program | None:
        self._extend(self.program)
        for _ in range(self.length * 12):
            if len(self.program.lines) >= self.length:
                break
            line = self._line()
            if line is not None:
                self._extend(replace(self.program, lines=(*self.program.lines, line)))
        while len(self.program.lines) >= 3:
            for _ in range(3):
                whole = replace(self.program, results=_results(self.rng, self.program, self.tensors))
                if sound(whole):
                    return whole
            if not self._extend(replace(self.program, lines=self.program.lines[:-1])):
                return None
        return None

    def _extend(self, longer: Program) -> bool:
        tensors = values(longer)
        if tensors is None:
            return False
        self.program, self.tensors = longer, tensors
        return True

    def _line(self) -> Line | None:
        d = Drawing(self.rng, self.tensors)
        try:
            return self._statement(d)
        except (Impossible, IndexError):
            return None

    def _statement(self, d: Drawing) -> Line:
        if d.chance(0.24):
            return _line(d, _drawn(CHANGES if d.chance(0.84) else WITHOUT_NAME, d))
        name = f"v{len(self.program.lines)}"
        if d.chance(0.08):
            expression, count = _drawn(SEVERAL, d)
            names = [name, *(f"{name}0{k}" for k in range(count - 1))]
            return _line(d, f"{', '.join(names)} = {expression}")
        text = f"{name} = {_drawn(LAYERS if d.chance(0.3) else STATEMENTS, d)}"
        if d.chance(0.04):
            text = f"with torch.no_grad():\n    {text}"
        return _line(d, text)


def _line(d: Drawing, text: str) -> Line:
    used = [s for s in d.setup if re.search(r'(?:self\.|")(\w+)', s)[1] in text]  # type: ignore[index]
    return Line(text, tuple(used))


def _drawn(table: Table, d: Drawing) -> Any:
    family = d.rng.choices([f for f, _ in table], [weight for _, weight in table])[0]
    return family(d)


def _inputs(rng: random.Random) -> dict[str, str]:
    return {name: _input(rng) for name in "xyzw"[: rng.randint(1, 4)]}


def _input(rng: random.Random) -> str:
    kinds = [torch.float32] * 16 + list(FLOATS[1:]) * 2 + [torch.int64, torch.bool] * 2 + list(INTEGERS)
    dtype = rng.choice(kinds)
    shape = [rng.choice(SIZES) if rng.random() < 0.98 else 0 for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4)))]
    text = made(rng.randrange(10**6), shape, dtype)
    if len(shape) > 1 and rng.random() < 0.15:
        text += ".transpose(0, 1)"
    elif shape and rng.random() < 0.1:
        text += rng.choice(("[::2]", "[..., ::2]", "[1:]"))
    if dtype.is_floating_point and rng.random() < 0.75:
        text += ".requires_grad_()"
    return text


def _results(rng: random.Random, program: Program, tensors: dict[str, torch.Tensor]) -> str:
    """The last value and a few others, as a tensor, a tuple or a dictionary."""
    names = [n for n in tensors if n.startswith("v")]
    inputs = [n for n in tensors if n not in names]
    unread = [n for n in names if not any(_reads(line, n) for line in program.lines)]
    chosen = list(dict.fromkeys(names[-1:] + (unread[-5:] if rng.random() < 0.5 else [])))
    chosen = list(dict.fromkeys(chosen + rng.sample(names, min(len(names), rng.randint(0, 2)))))
    if inputs and (not chosen or rng.random() < 0.08):
        chosen.append(rng.choice(inputs))
    rng.shuffle(chosen)
    if len(chosen) == 1 and rng.random() < 0.7:
        return chosen[0]
    if rng.random() < 0.25:
        return "{" + ", ".join(f'"{n}": {n}' for n in chosen) + "}"
    return f"({', '.join(chosen)},)" if rng.random() < 0.8 else f"[{', '.join(chosen)}]"


def _reads(line: Line, name: str) -> bool:
    return bool(re.search(rf"(?<!^)\b{name}\b", line.text.replace(" = ", " = (", 1).partition(" = ")[2] or line.text))


def values(program: Program) -> dict[str, torch.Tensor] | None:
    """The tensors at the end of the program, if all is well."""
    try:
        narrow, wide = (_locals(program, wide) for wide in (False, True))
        if any("no_grad" in x.text and narrow[_name(x)]._is_view() for x in program.lines if _name(x) in narrow):
            return None  # PyTorch discourages what follows, and eager and traced autograd differ in it
        readable = [t.is_leaf for t in narrow.values()]  # raises for views that may not be read any more
        return narrow if all(_well(t, wide[n]) for n, t in narrow.items()) and readable else None
    except Exception:
        return None


def _name(line: Line) -> str:
    return line.text.split(" = ")[0].split()[-1]


def _locals(program: Program, wide: bool) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, arguments = program.make(wide=wide)
        torch.manual_seed(0)
        found = module(*arguments)
    return {name: t for name, t in found.items() if isinstance(t, torch.Tensor)}


def _well(narrow: torch.Tensor, wide: torch.Tensor) -> bool:
    """Neither large nor infinite, and the same in float64, integers and flags exactly."""
    if narrow.numel() > LARGEST or narrow.shape != wide.shape or narrow.dim() > 5:
        return False
    a, b = narrow.detach().double(), wide.detach().double()
    if narrow.dtype not in CLOSE:
        return bool((a == b).all())
    if not a.numel():
        return True
    largest = float(b.abs().max())
    return largest < BOUND and float((a - b).abs().max()) <= CLOSE[narrow.dtype] * max(largest, 1e-2)


def sound(program: Program) -> bool:
    """Whether eager PyTorch runs it in both directions, and its results and gradients are well-conditioned."""
    try:
        narrow, wide = (execution.run(execution.Arguments(program, wide=w)) for w in (False, True))
    except Exception:
        return False
    return list(narrow.values) == list(wide.values) and all(
        _same(a, b) for a, b in zip(narrow.values.values(), wide.values.values())
    )


def _same(a: Any, b: Any) -> bool:
    return _well(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else type(a) is type(b)
