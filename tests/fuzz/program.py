"""A random program: statements of a module, which print as a readable file and run in eager PyTorch."""

from __future__ import annotations

import linecache
import re
import sys
import textwrap
import types
from dataclasses import dataclass, field

import torch
from torch import nn

PRELUDE = '''\
import torch
import torch.nn.functional as F
from torch import nn


def draw(seed, *shape, dtype=torch.float32, low=-3, high=4):
    """Numbers near one, or integers and flags, the same each time."""
    own = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randn(shape, generator=own) > 0
    if not dtype.is_floating_point:
        return torch.randint(low, high, shape, generator=own).to(dtype)
    return torch.randn(shape, generator=own).to(NARROW).to(dtype)
'''
_WIDTHS = dict.fromkeys(("torch.float32", "torch.bfloat16", "torch.float16"), "torch.float64")


@dataclass(frozen=True)
class Line:
    """Statements of ``forward`` that stay together, and what they need in ``__init__``."""

    text: str
    setup: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """Its parts as text; ``inputs`` are names with the expressions that make them."""

    seed: int
    inputs: dict[str, str] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    results: str = ""

    def source(self, *, wide: bool = False) -> str:
        """The whole file; ``wide``: in float64, of the same numbers."""
        setup = ["super().__init__()", *dict.fromkeys(s for line in self.lines for s in line.setup)]
        body = [*(line.text for line in self.lines), f"return {self.results or 'locals()'}"]
        text = PRELUDE + _module(self.seed, self.inputs, setup, body) + _arguments(self.inputs)
        if wide:
            text = re.sub("|".join(map(re.escape, _WIDTHS)), lambda m: _WIDTHS[m[0]], text)
        return text.replace("NARROW", "torch.bfloat16")

    def make(self, *, wide: bool = False) -> tuple[nn.Module, list[torch.Tensor]]:
        """The module, and the arguments of a call."""
        text = self.source(wide=wide)
        name = f"<fuzz {self.seed}{' wide' if wide else ''} {hash(text)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space = types.ModuleType(f"fuzz_{self.seed}")
        sys.modules[space.__name__] = space  # where Dynamo looks for its names
        exec(compile(text, name, "exec"), space.__dict__)
        module = space.Program()
        return module.to(torch.float64) if wide else module, space.arguments()


def _module(seed: int, inputs: dict[str, str], setup: list[str], body: list[str]) -> str:
    return "\n\n" + "\n".join(
        [
            "class Program(nn.Module):",
            f'    """Seed {seed}."""',
            "",
            "    def __init__(self):",
            textwrap.indent("\n".join(setup), " " * 8),
            "",
            f"    def forward({', '.join(['self', *inputs])}):",
            textwrap.indent("\n".join(body), " " * 8),
        ]
    )


def _arguments(inputs: dict[str, str]) -> str:
    made = "".join(f"        {text},  # {name}\n" for name, text in inputs.items())
    return f"\n\n\ndef arguments():\n    return [\n{made}    ]\n"
