"""Compile and run a graph of library nodes without the rest of the build: one C function over the arrays' addresses."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import dace
import numpy as np
import torch

from daceopt import libs
from daceopt.codegen.compiler import CompileJob, compile_objects, link
from daceopt.ir import types
from daceopt.ir.graph import Graph

DTYPES = {"float32": dace.float32, "float64": dace.float64}


class RunFailed(Exception):
    """What the C++ side reported."""


def compile_graph(graph: Graph, careless: bool = False) -> Callable[..., None]:
    """Implement the library nodes of a copy of ``graph``; the result is called ``run(*arrays, **symbols)``.

    ``arrays``: one per buffer that is no view, in the order of ``buffers(graph)``; nothing is checked. ``careless``: as
    the first run of a program (``daceopt/status.h``).
    """
    graph = graph.copy()
    order = buffers(graph)
    needs = libs.implement(graph)
    symbols = sorted(graph.sdfg.symbols)
    source = _source(graph, order, symbols, careless)
    objects = compile_objects([CompileJob(source, "entry", needs.flags), *needs.jobs])
    function = _load(tuple(map(str, objects)), needs.flags)

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


def _source(graph: Graph, order: list[str], symbols: list[str], careless: bool) -> str:
    from daceopt.libs.emission import extent

    lines = ['#include "daceopt/status.h"', "#include <algorithm>", "#include <cstdint>", "#include <cstring>"]
    lines.append("static void nodes(void** pointers, const int64_t* sizes) {")
    lines += [f"    const int64_t {s} = sizes[{i}]; (void){s};" for i, s in enumerate(symbols)]
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
    lines.append("int run(void** pointers, const int64_t* sizes, char* message) {\n    daceopt::clear_status();")
    lines += ["    const daceopt::Careless careless;"] if careless else []
    lines.append("    nodes(pointers, sizes);")
    lines.append("    std::memcpy(message, daceopt::status.message, sizeof daceopt::status.message);")
    lines.append("    return daceopt::status.failed;\n}")
    return "\n".join(lines)


@cache
def _load(objects: tuple[str, ...], flags: object) -> Callable[..., int]:
    with tempfile.TemporaryDirectory(prefix="daceopt-libs-test-") as folder:  # a loaded library needs no file
        target = Path(folder) / "program.so"
        link([Path(o) for o in objects], target, flags)  # type: ignore[arg-type]
        return ctypes.CDLL(str(target)).run
