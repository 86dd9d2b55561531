"""Makes a program that fails smaller: fewer results, fewer statements, values in place of statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from tests.fuzz.drawing import made
from tests.fuzz.generator import sound, values
from tests.fuzz.program import Program

Fails = Callable[[Program], bool]


def shrunk(program: Program, fails: Fails) -> Program:
    """The smallest program found that still fails."""
    while True:
        smaller = next((p for p in _smaller(program) if sound(p) and fails(p)), None)
        if smaller is None:
            return program
        program = smaller


def _smaller(program: Program) -> Iterator[Program]:
    names = re.findall(r"\b[vxyzw]\d*\b(?!\")", program.results)
    if len(names) > 1:
        yield from (replace(program, results=f"({name},)") for name in names)
        yield from (replace(program, results=f"({', '.join(n for n in names if n != name)},)") for name in names)
    for k in reversed(range(len(program.lines))):
        yield replace(program, lines=program.lines[:k] + program.lines[k + 1 :])
    yield from _given(program)
    for name in program.inputs:
        left = {n: text for n, text in program.inputs.items() if n != name}
        if left and not any(re.search(rf"\b{name}\b", line.text) for line in program.lines) and name not in names:
            yield replace(program, inputs=left)


def _given(program: Program) -> Iterator[Program]:
    """With the value of a statement as one more input."""
    tensors = values(program) or {}
    for k, line in enumerate(program.lines):
        name = line.text.split(" = ")[0]
        value = tensors.get(name)
        if isinstance(value, torch.Tensor) and name not in program.inputs:
            text = made(k, value.shape, value.dtype) + (".requires_grad_()" if value.requires_grad else "")
            lines = program.lines[:k] + program.lines[k + 1 :]
            yield replace(program, inputs={**program.inputs, name: text}, lines=lines)
