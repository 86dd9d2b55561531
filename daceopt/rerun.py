"""What a reproducer calls: does again what failed, and says whether it still fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import daceopt.capture.torch.call_text
import daceopt.ops  # noqa: F401  (the classes of library nodes, and how they are executed)
from daceopt.errors import VerificationError
from daceopt.ir.control.imported import Gradients
from daceopt.ir.control.program import Program
from daceopt.ir.graph.graph import Graph
from daceopt.ir.text.parse import parse
from daceopt.passes.bisect import what_breaks
from daceopt.passes.bisect_built import compiled_difference
from daceopt.passes.reproducer import unpack
from daceopt.passes.transform import OF_DACE, Transformation, parse_step, transformations
from daceopt.passes.verification import Numerics, Structure, check_match

GONE, THERE, CANNOT_RUN = 0, 1, 2


def step(
    graphs: Sequence[str],
    text: str,
    code: str | None,
    of: str | None,
    gradients: Sequence[Any] | None,
    inputs: Mapping[str, str] | None,
    large: Mapping[str, str],
    failure: str,
) -> int:
    """Apply the step ``text`` to the graph and check it as ``verify="numerics"`` does; returns the exit code.

    ``code``: the file of a step that is not daceopt's own, with its class ``of``. ``gradients``: the fields of
    ``Gradients`` where the step edits a program. ``inputs``: packed values; random ones where None.
    """

    def run() -> str | None:
        (graph,) = (parse(g, unpack(large)) for g in graphs)
        transformation = _transformation(text, code, of)
        if transformation.edits_programs:
            return _program_failure(transformation, graph, gradients)
        return _step_failure(transformation, graph, None if inputs is None else unpack(inputs))

    return _report(run, failure)


def programs(
    graphs: Sequence[str],
    roles: Sequence[Mapping[str, str]],
    inputs: Mapping[str, str] | None,
    large: Mapping[str, str],
    failure: str,
) -> int:
    """Compile the graphs, forward and backward, and compare what they compute with the interpreter; returns the exit
    code."""

    def run() -> str | None:
        read = [parse(g, unpack(large)) for g in graphs]
        return _programs_failure(read, roles, None if inputs is None else unpack(inputs))

    return _report(run, failure)


def _report(run: Callable[[], str | None], failure: str) -> int:
    try:
        message = run()
    except (Exception, SystemExit):
        traceback.print_exc()
        print(f"the reproducer cannot run; it was written for: {failure}", file=sys.stderr)
        return CANNOT_RUN
    if message is None:
        print(f"gone: {failure}")
        return GONE
    print(message if message == failure else f"{message}\nit was written for: {failure}")
    return THERE


def _transformation(text: str, code: str | None, of: str | None) -> Transformation:
    """The step: daceopt's own and those of plug-ins by name, others by the code that came with the reproducer."""
    if code is None or of is None:
        return Transformation.parse(text)
    module = ModuleType("reproduced_step")
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    exec(compile(code, "<the file of the step>", "exec"), vars(module))  # the user's own, as it was loaded before
    if text.startswith(OF_DACE):  # DaCe knows it by its class, which exists now
        return Transformation.parse(text)
    target: Any = module
    for name in of.split("."):
        target = getattr(target, name)
    name, options = parse_step(text)
    if name != target.kebab_name():  # a step at one of its sites
        transformations.add(target.kebab_name(), target)
        return Transformation.parse(text)
    configured: Transformation = target.with_options(options)
    return configured


def _step_failure(transformation: Transformation, graph: Graph, inputs: dict[str, np.ndarray] | None) -> str | None:
    check = Numerics(graph.copy(), inputs)
    try:
        check_match(transformation, graph.copy())
    except VerificationError as error:
        return str(error)
    except Exception as error:
        return f"step {transformation}: {type(error).__name__}: {error}"
    message = what_breaks(transformation, graph, check)
    return None if message is None else f"step {transformation}: {message}"


def _program_failure(transformation: Transformation, graph: Graph, gradients: Sequence[Any] | None) -> str | None:
    program = Program.of(graph, None if gradients is None else Gradients(*gradients))
    try:
        transformation.run_program(program)
        for direction in program.directions():
            Structure(full=True).before(direction)
    except Exception as error:
        return f"step {transformation}: {type(error).__name__}: {error}"
    return None


def _programs_failure(
    graphs: Sequence[Graph], roles: Sequence[Mapping[str, str]], inputs: dict[str, np.ndarray] | None
) -> str | None:
    difference = compiled_difference(list(zip(graphs, roles, strict=True)), inputs)
    return None if difference is None else difference.message
