"""Writes a failure down as one Python file that runs alone: ``python reproducer.py`` says it again.

The file has the graph as text, the values that matter, and what was done to them, which ``rerun`` does again.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import sys
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from daceopt._version import __version__
from daceopt.passes import trace
from daceopt.passes.feeds import random_inputs
from daceopt.store import identity
from daceopt.store.cache import default_folder

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.passes.transform import Transformation

Arrays = Mapping[str, np.ndarray]
NAME = "reproducer.py"


def of_step(
    transformation: Transformation,
    graph: Graph,
    inputs: Arrays,
    failure: str,
    gradients: Sequence[object] | None = None,
) -> Path:
    """Write a step that fails on ``graph``, as it is before it, with the values of its inputs; returns the file.

    ``gradients``: the fields of ``Gradients``, for a step that edits a program rather than one graph.
    """
    code = _code_of(transformation.inner)
    definer = transformation.inner.defined_by.__qualname__ if code else None
    settings = {"STEP": str(transformation), "WANTED": gradients, "OF": definer}
    call = "rerun.step(GRAPHS, STEP, CODE, OF, WANTED, INPUTS, LARGE, FAILURE)"
    return _save(transformation.name, failure, [(graph, {})], inputs, {**settings, "CODE": code}, call)


def of_programs(
    name: str, failure: str, parts: Sequence[tuple[Graph, Mapping[str, str]]], inputs: Arrays, source: str
) -> Path:
    """Write compiled programs of which one is not what its graph says: forward and backward with the roles of their
    arrays; ``source`` is the code as it was printed, for people."""
    roles = [dict(own_roles) for _, own_roles in parts]
    call = "rerun.programs(GRAPHS, ROLES, INPUTS, LARGE, FAILURE)"
    return _save(f"built-{name}", failure, parts, inputs, {"ROLES": roles, "SOURCE": source}, call)


def _save(
    name: str,
    failure: str,
    parts: Sequence[tuple[Graph, Mapping[str, str]]],
    inputs: Arrays,
    settings: Mapping[str, object],
    call: str,
) -> Path:
    from daceopt.ir.text.render import render

    large: dict[str, np.ndarray] = {}
    texts = [render(graph, large) for graph, _ in parts]
    seeded = _are_random(parts[0][0], inputs)
    values = {"GRAPHS": texts, "INPUTS": None if seeded else pack(inputs), "LARGE": pack(large), **settings}
    text = "\n".join(_lines(failure, values, call)) + "\n"
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]
    folder = (trace.folder() or default_folder()) / "reproducers" / f"{name.replace(':', '-')}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(text, encoding="utf-8", errors="backslashreplace")
    return folder / NAME


def _are_random(graph: Graph, inputs: Arrays) -> bool:
    """Are these the values that checks take where none are given?"""
    drawn = random_inputs(graph)
    same = (n in inputs and _bits(value) == _bits(np.asarray(inputs[n])) for n, value in drawn.items())
    return drawn.keys() >= inputs.keys() and all(same)


def _bits(value: np.ndarray) -> tuple[Hashable, ...]:
    return value.dtype, value.shape, value.tobytes()


def _code_of(transformation: Transformation) -> str | None:
    """The file that defines a step which is not daceopt's own; None where it is, or where no file is to be had."""
    definer = transformation.defined_by
    module = sys.modules.get(definer.__module__)
    if identity.is_own(definer.__module__) or "<locals>" in definer.__qualname__ or module is None:
        return None
    try:
        return inspect.getsource(module if getattr(module, "__file__", None) else definer)
    except (OSError, TypeError):
        return None


# ---------------------------------------------------------------- the file


def _lines(failure: str, values: Mapping[str, object], call: str) -> Iterator[str]:
    yield f"# Written by daceopt {__version__}. `python {NAME}` ends with 1 while this failure is there, with 0 when it"
    yield "# is gone, with 2 where it cannot run:"
    yield from (f"#   {line}" for line in failure.replace("\0", "").splitlines())
    yield from ("", "from daceopt import rerun", "", f"FAILURE = {failure!r}")
    for name, value in values.items():
        yield from _assignment(name, value)
    yield from ("", 'if __name__ == "__main__":', f"    raise SystemExit({call})")


def _assignment(name: str, value: object) -> Iterator[str]:
    """Text over several lines as one string for each of them; text cannot end its string, whatever it says."""
    if isinstance(value, str) and "\n" in value:
        yield from (f"{name} = (", *_quote(value), ")")
    elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        yield f"{name} = ["
        for text in value:
            yield from ("    (", *_quote(text), "    ),")
        yield "]"
    elif isinstance(value, dict) and value:
        yield from (f"{name} = {{", *(f"    {key!r}: {text!r}," for key, text in value.items()), "}")
    else:
        yield f"{name} = {value!r}"


def _quote(text: str) -> Iterable[str]:
    return (f"    {line!r}" for line in text.splitlines(keepends=True) or [""])


# ---------------------------------------------------------------- arrays


def pack(arrays: Arrays) -> dict[str, str]:
    """Arrays of all element types as text: type, shape, and the bytes compressed."""
    texts = {}
    for name, value in arrays.items():
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode()
        texts[name] = f"{value.dtype.name} {json.dumps(list(np.shape(value)))} {packed}"
    return texts


def unpack(packed: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The arrays that :func:`pack` wrote."""
    from daceopt.ir.scalar import types

    arrays = {}
    for name, text in packed.items():
        dtype, rest = text.split(" ", 1)
        shape, encoded = rest.rsplit(" ", 1)
        raw = zlib.decompress(base64.b64decode(encoded))
        arrays[name] = np.frombuffer(raw, types.to_numpy(types.from_name(dtype))).reshape(json.loads(shape)).copy()
    return arrays
