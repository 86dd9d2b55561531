"""Convolutions by oneDNN, from the wheels ``onednn-cpu-gomp`` (library) and ``onednn-devel-cpu-gomp`` (headers)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import dace

from daceopt.codegen.compiler import Flags
from daceopt.errors import Unsupported
from daceopt.ir.graph.kinds import Node
from daceopt.ir.nodes.blocked import BLOCK, image_shape
from daceopt.ir.nodes.library import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    is_constant,
    narrow_type,
    takes_narrow,
)
from daceopt.ir.scalar.dims import Dim, is_dense
from daceopt.libs.base import Library, Missing, Requirements, choose, register, support, working_memory
from daceopt.libs.emission import boolean, braces, element, extent, first_iteration, hold, number

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_LIBRARY_WHEEL, _HEADER_WHEEL = "onednn-cpu-gomp", "onednn-devel-cpu-gomp"
_INSTALL = f"pip install {_LIBRARY_WHEEL} {_HEADER_WHEEL} (Linux on x86-64)"
SOURCES = ("onednn_convolution.cpp", "onednn_weights.cpp", "depthwise.cpp")
_ABSENT = "daceopt::Tensor{nullptr, {}, {}}"
_LAYOUTS = {"": "kFastest", "first": "kFirst", "last": "kLast", "blocked": "kBlocked"}


class _Files(NamedTuple):
    library: Path
    include: Path
    version: str


class OneDnnWheels(Library):
    """What all that oneDNN computes has in common: where it comes from."""

    portable: ClassVar[bool] = True

    def available(self) -> Missing | None:
        """Missing when one of the two wheels is not installed."""
        return None if _files() else Missing("oneDNN's library or headers are not installed", _INSTALL)

    def version(self) -> str:
        files = _files()
        return files.version if files else ""

    def support(self, *sources: str, header: str) -> Requirements:
        """Requirements of calls into these sources of ours, declared in ``daceopt/<header>``."""
        define, version = f"DACEOPT_BLOCK={BLOCK}", f"onednn-{self.version()}"
        parts = [support(s, header=header, flags=flags(), define=define, version=version) for s in sources]
        return sum(parts, working_memory())


class OneDnn(OneDnnWheels):
    """float32 and bfloat16 convolutions of 1 to 3 spatial dimensions, all three passes, channels first or last."""

    name: ClassVar[str] = "onednn"
    prepares: ClassVar[bool] = True

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Any convolution of these types in 1 to 3 spatial dimensions without negative padding and activation.

        Images of float32 may be in blocks.
        """
        if not isinstance(node, (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights)):
            return "oneDNN is used for convolutions only"
        names = node.operands(graph)
        dtypes = {graph.dtype(name) for name in names.values()}
        if dtypes != {dace.float32} and not takes_narrow(node, graph) and narrow_type(node, graph) is None:
            return f"element types {sorted(map(str, dtypes))}, expected float32, or factors of bfloat16"
        kernel = graph.shape(names["W" if "W" in names else "dW"])
        if 0 in kernel:
            return f"a kernel of shape {kernel}, which has no elements"
        rank = len(kernel) - 2
        if rank not in (1, 2, 3):
            return f"{rank} spatial dimensions, expected 1 to 3"
        if any(p < 0 for p in node.pads):
            return f"negative padding {list(node.pads)}"
        unable = _why_no_epilogue(node, graph, names) if isinstance(node, Convolution) else None
        return unable or why_not_strides(graph, names) or _why_not_blocked(node, graph, names)

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """One call into ``src/onednn_convolution.cpp``; ``src/onednn_weights.cpp`` keeps its weights."""
        names = node.operands(graph)

        assert isinstance(node, (Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights))
        blocked = node.blocked_connectors(graph)

        def tensor(*connectors: str) -> str:
            return ", ".join(_tensor(graph, c, names.get(c), c in blocked) for c in connectors)

        window = ", ".join(braces(v) for v in node.window(node.spatial(graph)))
        shared = f"daceopt::Window{{{window}}}, {extent(node.group)}, daceopt::Layout::{_LAYOUTS[node.layout]}"
        declared, weights = kept_weights(node, graph)
        if isinstance(node, Convolution):
            relu = f"{boolean(node.activation == 'relu')}, float({number(node.slope)}), float({number(node.ceiling)})"
            epilogue = f"{{{tensor('S', 'T', 'Z')}, {relu}}}"
            return (
                f"{declared}daceopt::onednn_convolution({tensor('X', 'W', 'B', 'Y')}, {epilogue}, {shared}{weights});"
            )
        if isinstance(node, ConvolutionBackwardData):
            return f"{declared}daceopt::onednn_convolution_backward_data({tensor('dY', 'W', 'dX')}, {shared}{weights});"
        return f"daceopt::onednn_convolution_backward_weights({tensor('X', 'dY', 'dW')}, {shared});"

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        return self.support(*SOURCES, header="onednn.h")


def is_chosen(graph: Graph, node: DenseNode) -> bool:
    """Is oneDNN what will compute the convolution ``node``?"""
    try:
        return graph.options.target == "cpu" and choose(node, graph).name == OneDnn.name
    except Unsupported:
        return False


def library() -> Path | None:
    """The library's file; None where a wheel is missing."""
    files = _files()
    return files.library if files else None


def flags() -> Flags:
    """Headers and library of oneDNN, which is found again where it was; it has to be installed."""
    files = _files()
    assert files is not None
    link = (str(files.library), f"-Wl,-rpath,{files.library.parent}")
    return Flags(includes=(str(files.include),), link=link)


def kept_weights(node: DenseNode, graph: Graph) -> tuple[str, str]:
    """(declaration, argument) of what keeps prepared weights: from call to call, for good or while they stay the same,
    or from iteration to iteration of the loops around the call."""
    packed, loops = getattr(node, "packed", False), getattr(node, "held_over", ())
    if packed:
        names = node.operands(graph)
        if all(is_constant(graph, names[c]) for c in (node.weights, "S") if c in names):
            return "static daceopt::PackedWeights packed; ", ", &packed"
        use = "static thread_local daceopt::CheckedWeights::Use use(checked); "
        return f"static daceopt::CheckedWeights checked; {use}", f", use.in({first_iteration(loops)})"
    return hold(loops) if loops else ("", "")


def _tensor(graph: Graph, connector: str, name: str | None, is_blocked: bool) -> str:
    if name is None:
        return _ABSENT
    if is_blocked:
        dims = braces(image_shape(graph.shape(name)))
        return f"daceopt::Tensor{{(void*)({connector}), {dims}, {dims}, {element(graph.dtype(name))}, true}}"
    layout = f"{braces(graph.shape(name))}, {braces(graph.strides(name))}"
    return f"daceopt::Tensor{{(void*)({connector}), {layout}, {element(graph.dtype(name))}}}"


def _why_no_epilogue(node: Convolution, graph: Graph, names: dict[str, str]) -> str | None:
    wide = {graph.dtype(name) for name in names.values()} == {dace.float32}
    if not wide and (node.activation or {"S", "T"} & names.keys()):
        return "factors of bfloat16: their sums get nothing but a bias and a residual"
    if node.activation and node.slope == 0 and not node.doubtful:
        return f"activation {node.activation!r}: oneDNN's turns NaN into 0, or -inf into NaN"
    if node.activation and not is_dense(graph.shape(names["Y"]), graph.strides(names["Y"])):
        return f"activation {node.activation!r} of a result with gaps (strides {graph.strides(names['Y'])})"
    return None


def _why_not_blocked(node: Node, graph: Graph, names: dict[str, str]) -> str | None:
    for connector in sorted(node.blocked_connectors(graph)):
        name = names[connector]
        if graph.dtype(name) != dace.float32 or not graph.is_contiguous(name) or graph.shape(name)[-1] != BLOCK:
            layout = f"{graph.dtype(name)} of shape {graph.shape(name)} and strides {graph.strides(name)}"
            return f"operand {connector} is {layout}; in blocks expected float32, {BLOCK} channels inside, in rows"
    return None


def why_not_strides(graph: Graph, names: dict[str, str]) -> str | None:
    """Why oneDNN does not take operands of these strides."""
    for connector, name in names.items():
        steps = _outer_strides(graph.shape(name), graph.strides(name))
        if any(step == 0 for step in steps):
            return f"operand {connector} is a broadcast view (strides {graph.strides(name)})"
        if len(steps) == 1 and steps != [1]:
            return f"operand {connector} has stride {steps[0]}, expected 1"
        if not all(map(graph.sizes.knowing(graph.shape(name)).is_natural, steps)):
            return f"operand {connector} has a negative stride {graph.strides(name)}"
    return None


def _outer_strides(shape: Sequence[Dim], strides: Sequence[Dim]) -> list[Dim]:
    """Strides along dimensions that are longer than 1."""
    return [step for n, step in zip(shape, strides, strict=True) if n != 1]


@cache
def _files() -> _Files | None:
    library, header = _find(_LIBRARY_WHEEL, "libdnnl.so.3"), _find(_HEADER_WHEEL, "oneapi/dnnl/dnnl.hpp")
    if library is None or header is None:
        return None
    include = header.parents[2]
    return _Files(library, include, _header_version(include / "oneapi/dnnl/dnnl_version.h"))


def _find(wheel: str, ending: str) -> Path | None:
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = [Path(str(f.locate())).resolve() for f in files if str(f).endswith(ending)]
    return next((path for path in paths if path.exists()), None)


def _header_version(path: Path) -> str:
    numbers = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 3 and words[1].startswith("DNNL_VERSION_"):
            numbers[words[1]] = words[2]
    return ".".join(numbers.get(f"DNNL_VERSION_{part}", "0") for part in ("MAJOR", "MINOR", "PATCH"))


register(OneDnn())
