"""Compile and run a graph of library nodes without the rest of the build: one C function over the arrays' addresses."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import NamedTuple

import dace
import numpy as np
import torch

from daceopt import libs
from daceopt.codegen.compiler import CompileJob, Flags, Requirements, compile_objects, link
from daceopt.ir.graph.graph import Graph
from daceopt.ir.scalar import types

DTYPES = {"float32": dace.float32, "float64": dace.float64}


class RunFailed(Exception):
    """What the C++ side reported."""


def compile_graph(graph: Graph, careless: bool = False) -> Callable[..., None]:
    """Implement the library nodes of a copy of ``graph``; the result is called ``run(*arrays, **symbols)``.

    ``arrays``: one per buffer that is no view, in the order of ``buffers(graph)``; nothing is checked. ``careless``: as
    the first run of a program (``daceopt/status.h``).
    """
    (run,) = compile_implemented([implemented(graph, careless)])
    return run


class Implemented(NamedTuple):
    """A graph whose library nodes are calls in C++."""

    graph: Graph
    order: list[str]
    needs: Requirements
    symbols: list[str]
    careless: bool


def implemented(graph: Graph, careless: bool = False) -> Implemented:
    graph = graph.copy()
    order = buffers(graph)
    return Implemented(graph, order, libs.implement(graph), sorted(graph.size_names), careless)


def compile_implemented(parts: Sequence[Implemented]) -> list[Callable[..., None]]:
    """A function for each, as by ``compile_graph``, all from one source: what headers cost is paid once."""
    needs = reduce(Requirements.__add__, (part.needs for part in parts))
    source = "\n".join([*_INCLUDES, *needs.declarations, *(_source(part, k) for k, part in enumerate(parts))])
    objects = compile_objects([CompileJob(source, "frame", needs.flags), *needs.jobs])
    library = _load(tuple(map(str, objects)), needs.flags)
    return [_callable(part, library[f"run_{k}"]) for k, part in enumerate(parts)]


def _callable(part: Implemented, function: Callable[..., int]) -> Callable[..., None]:
    order, symbols = part.order, part.symbols

    def run(*arrays: np.ndarray | torch.Tensor, **values: int) -> None:
        assert len(arrays) == len(order), f"{len(arrays)} arrays for {order}"
        pointers = (ctypes.c_void_p * len(arrays))(*(_address(a) for a in arrays))
        sizes = (ctypes.c_int64 * max(1, len(symbols)))(*(values[s] for s in symbols))
        message = ctypes.create_string_buffer(512)
        if function(pointers, sizes, message):
            raise RunFailed(message.value.decode())

    return run


def buffers(graph: Graph) -> list[str]:
    """Arrays that are no views, in the order they were added."""
    return [name for name in graph.arrays() if not graph.is_view(name)]


def _address(array: np.ndarray | torch.Tensor) -> int:
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


_INCLUDES = (
    '#include "daceopt/status.h"',
    "#include <algorithm>",
    "#include <cstdint>",
    "#include <cstring>",
    "#include <exception>",
)


def _source(part: Implemented, number: int) -> str:
    from daceopt.libs.emission import extent

    graph, order = part.graph, part.order
    lines = [f"static void nodes_{number}(void** pointers, const int64_t* sizes) {{"]
    lines += [f"    const int64_t {s} = sizes[{i}]; (void){s};" for i, s in enumerate(part.symbols)]
    for node in graph.nodes():
        lines.append("    {")
        for connector, name in {**graph.reads(node), **graph.writes(node)}.items():
            root, offset = graph.root(name)
            ctype = types.cpp(graph.dtype(name))
            lines.append(
                f"        auto* {connector} = static_cast<{ctype}*>(pointers[{order.index(root)}]) + {extent(offset)};"
            )
        lines.append(f"        {node.code.as_string}\n    }}")
    lines.append("}")
    lines.append('extern "C" __attribute__((visibility("default")))')
    lines.append(f"int run_{number}(void** pointers, const int64_t* sizes, char* message) {{")
    lines.append("    daceopt::clear_status();")
    lines += ["    const daceopt::Careless careless;"] if part.careless else []
    lines.append(f"    try {{ nodes_{number}(pointers, sizes); }}")
    lines.append('    catch (const std::exception& error) { daceopt::fail("run", error.what()); }')
    lines.append("    std::memcpy(message, daceopt::status.message, sizeof daceopt::status.message);")
    lines.append("    return daceopt::status.failed;\n}")
    return "\n".join(lines)


@cache
def _load(objects: tuple[str, ...], flags: Flags) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="daceopt-libs-test-") as folder:  # a loaded library needs no file
        target = Path(folder) / "program.so"
        link([Path(o) for o in objects], target, flags)
        return ctypes.CDLL(str(target))
