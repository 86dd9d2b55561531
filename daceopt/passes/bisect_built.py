"""What is compiled of a program beside what its graphs say, at any step of a recipe."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.codegen.assemble import KIND, load_program
from daceopt.errors import DaceoptError
from daceopt.passes import reproducer
from daceopt.passes.feeds import random_inputs
from daceopt.passes.verification_built import Built, Difference, compare
from daceopt.store.cache import default_cache

if TYPE_CHECKING:
    import numpy as np

    from daceopt.ir.control.program import Program
    from daceopt.ir.graph.graph import Graph


Part = tuple["Graph", Mapping[str, str]]  # with the roles of its arrays


def compiled_difference(parts: Sequence[Part], inputs: Mapping[str, np.ndarray] | None) -> Difference | None:
    """Compile the graphs, forward and backward, past the cache of others, and compare what they compute with the
    interpreter; the first result that differs, or None. Raises BuildError where they cannot be compiled."""
    from daceopt import libs
    from daceopt.codegen.build import build

    names = build(f"check {uuid.uuid4()}", list(parts), libs.implement)
    try:
        programs = [program for program in map(load_program, names) if program is not None]
        if len(programs) < len(names):
            raise DaceoptError("what was just compiled is not in the cache")
        built = [Built(graph, roles, program) for (graph, roles), program in zip(parts, programs, strict=True)]
        difference = compare(*built, inputs=inputs)
        if difference is not None:
            difference.built.program.source()  # read while it is there
        return difference
    finally:
        for name in names:
            default_cache().discard(KIND, name)


class BuiltCheck:
    """Compiles programs between steps and compares them with their graphs, on ``inputs`` (random where absent)."""

    def __init__(self, inputs: Mapping[str, np.ndarray] | None):
        self._inputs = inputs

    def difference(self, program: Program) -> Difference | None:
        """The first result that is not what the graphs say; operators are lowered first where a step has left some."""
        return compiled_difference(_lower(program), self._inputs)

    def report(self, program: Program) -> tuple[str, str, Path]:
        """The graph that differs, how, and a reproducer."""
        parts = _lower(program)
        difference = compiled_difference(parts, self._inputs)
        assert difference is not None
        feeds = {**random_inputs(parts[0][0]), **(self._inputs or {})}
        name, source = difference.built.graph.name, difference.built.program.source()
        return name, difference.message, reproducer.of_programs(name, difference.message, parts, feeds, source)


def _lower(program: Program) -> list[Part]:
    from daceopt import ops

    lowered = program.copy()
    for graph in lowered.directions():
        ops.lower_all(graph)
    return [(graph, lowered.roles(graph)) for graph in lowered.directions()]
