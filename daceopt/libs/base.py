"""What a dense library offers, the choice between libraries, and the step that turns library nodes into C++ calls."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from daceopt._version import __version__
from daceopt.codegen.compiler import CompileJob, Flags, Requirements
from daceopt.codegen.kernel_unit import support_header
from daceopt.cost.rates import rates
from daceopt.errors import DaceoptError, Unsupported
from daceopt.ir.access.references import resolve_all
from daceopt.ir.control.region import Region, Repeat
from daceopt.ir.data.provenance import label_of
from daceopt.ir.kernel.kernel_node import KernelNode
from daceopt.ir.legality import microkernels
from daceopt.ir.nodes.library import Contraction, DenseNode
from daceopt.ir.scalar import types
from daceopt.libs.contraction import into_rows
from daceopt.scoped import scoped
from daceopt.store import identity

if TYPE_CHECKING:
    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.library import DenseNode

_HERE = Path(__file__).parent
INCLUDE = _HERE / "include"


class Missing(NamedTuple):
    """Why a library cannot be used on this machine, and the command or change that helps."""

    what: str
    install: str

    def __str__(self) -> str:
        return f"{self.what}; {self.install}"


class Library:
    """One external library. To add another, subclass, ``register`` an instance and name it in ``PREFERENCE``.

    ``portable``: what calls it needs nothing of the process but the files that it links, so it may run elsewhere.
    ``targets``: on whose arrays it works. ``prepares``: it keeps weights where the node says so, also those of float32
    beside a factor of bfloat16.
    """

    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]] = ("cpu",)
    portable: ClassVar[bool] = False
    prepares: ClassVar[bool] = False

    def available(self) -> Missing | None:
        """What is missing on this machine and what to install; None when the library is there."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the library's version for reports and cache keys; "" when it is missing."""
        raise NotImplementedError

    def supports(self, node: DenseNode, graph: Graph) -> str | None:
        """Return None if the library implements this very node, else the reason why not."""
        raise NotImplementedError

    def emit(self, node: DenseNode, graph: Graph) -> str:
        """Return C++ statements over the node's connectors, which are pointers, and the graph's symbols."""
        raise NotImplementedError

    def requirements(self, node: DenseNode, graph: Graph) -> Requirements:
        """Return what the emitted statements need to compile and link."""
        raise NotImplementedError


class OwnCode(Library):
    """C++ of our own: never missing, of daceopt's own version, and needs nothing of the process."""

    portable: ClassVar[bool] = True

    def available(self) -> Missing | None:
        return None

    def version(self) -> str:
        return __version__


COLLECTIVES = (
    *("AllReduceStart", "AllReduceWait", "ReduceScatterStart", "ReduceScatterWait"),
    *("AllGatherStart", "AllGatherWait", "IntoShards", "OwnShard", "Unshard", "AgreementStart", "AgreementWait"),
)
# Best first, as measured on an Intel machine (docs/decisions/dense-libraries.md); ``candidates`` says when another is.
PREFERENCE: dict[str, tuple[str, ...]] = {
    "Contraction": ("panels", "onednn_narrow_product", "mkl", "onednn_product", "native", "torch_device"),
    "Convolution": ("onednn", "aten", "torch_device"),
    "ConvolutionBackwardData": ("onednn", "aten", "torch_device"),
    "ConvolutionBackwardWeights": ("onednn", "aten", "torch_device"),
    "QuantizedConvolution": ("onednn_quantized",),
    "QuantizedProduct": ("onednn_quantized",),
    "Pool": ("pool", "device_pool"),
    "PoolBackward": ("pool", "device_pool"),
    "GroupedProduct": ("mkl", "native"),
    "IndexAdd": ("native", "torch_device"),
    **dict.fromkeys(("AttentionForward", "AttentionBackward"), ("torch_attention",)),
    "NanWatch": ("native",),
    "Algorithm": ("algorithms", "torch_algorithms"),
    "HostCall": ("torch_call", "host"),
    "MicroProduct": ("torch_product", "native_product"),
    **dict.fromkeys(COLLECTIVES, ("torch_collectives",)),
}
_MARGIN = 1.05  # times faster than the first in line: more than two measurements in turns of one library differ
_SEALED: dict[str, tuple[str, ...]] = {}
_LIBRARIES: dict[str, Library] = {}
_preferred: ContextVar[Mapping[str, str] | None] = ContextVar("daceopt_preferred_libraries", default=None)
_portable_only: ContextVar[bool] = ContextVar("daceopt_portable_libraries_only", default=False)


def register(library: Library) -> Library:
    """Make a library known under its name; a later one of the same name replaces it."""
    _LIBRARIES[library.name] = library
    return library


def seal() -> None:
    """All libraries and preferences so far are daceopt's own."""
    _SEALED.update(PREFERENCE)


def foreign_source() -> str:
    """What stands for the choices that users made: preferences, and libraries of their own; "" for none."""
    changed = {k: v for k, v in PREFERENCE.items() if _SEALED.get(k) != v}
    users = {n: library for n, library in _LIBRARIES.items() if not identity.is_own(type(library).__module__)}
    chosen = [changed, dict(sorted((_preferred.get() or {}).items())), users]
    return identity.text_of(chosen) if any(chosen) else ""


def names() -> list[str]:
    """Return the names of all known libraries."""
    return list(_LIBRARIES)


def get(name: str) -> Library:
    """Return the library called ``name``; raises DaceoptError for an unknown name."""
    if name not in _LIBRARIES:
        raise DaceoptError(f"no library {name!r}; known are {names()}")
    return _LIBRARIES[name]


@contextmanager
def prefer(**choice: str) -> Iterator[None]:
    """Within the block, use the named library for a node kind: ``prefer(Contraction="native")``."""
    with scoped(_preferred, {**(_preferred.get() or {}), **choice}):
        yield


def candidates(kind: str) -> tuple[str, ...]:
    """Return the libraries for a node kind, best first; one named by ``prefer`` is the only candidate.

    Products go to the library that multiplies faster on this machine, if it does so by far.
    """
    preference = (_preferred.get() or {}).get(kind)
    if preference:
        return (preference,)
    listed = PREFERENCE.get(kind, ())
    return _fastest_first(listed) if kind == "Contraction" else listed


def _fastest_first(listed: tuple[str, ...]) -> tuple[str, ...]:
    """``listed``, but before the first library that was measured the fastest one, if that is faster by ``_MARGIN``."""
    measured = {name: rate for name, rate in rates().products if name in listed}
    first = next((name for name in listed if name in measured), None)
    if first is None:
        return listed
    best = max(measured, key=measured.__getitem__)
    if measured[best] < _MARGIN * measured[first]:
        return listed
    others = [name for name in listed if name != best]
    return (*others[: others.index(first)], best, *others[others.index(first) :])


@contextmanager
def portable() -> Iterator[None]:
    """Within the block, programs call only libraries that work without PyTorch in the process."""
    with scoped(_portable_only, True):
        yield


def why_not(name: str, node: DenseNode, graph: Graph) -> str | None:
    """Return why the library called ``name`` cannot implement ``node``; None if it can."""
    library = get(name)
    if graph.options.target not in library.targets:
        return f"it works on arrays of {', '.join(library.targets)}; these live on {graph.options.target}"
    if _portable_only.get() and not library.portable:
        return "it works only in a process that has PyTorch"
    missing = library.available()
    return str(missing) if missing else library.supports(node, graph)


def reasons(node: DenseNode, graph: Graph) -> dict[str, str | None]:
    """Return for each candidate, best first, why it cannot implement ``node``; None for those that can."""
    return {name: why_not(name, node, graph) for name in candidates(type(node).__name__)}


def choose(node: DenseNode, graph: Graph) -> Library:
    """Return the best library for ``node``; raises Unsupported with each candidate's reason if there is none."""
    for name in candidates(type(node).__name__):
        if why_not(name, node, graph) is None:
            return get(name)
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons(node, graph).items()) or "no candidates"
    raise Unsupported(f"no library implements {type(node).__name__} {node.label!r}: {listed}")


def implement(graph: Graph) -> Requirements:
    """Replace every library node of ``graph``, and of bodies in it, by a C++ tasklet that calls the chosen library.

    The tasklet has the node's connectors, typed as pointers, over whole arrays. Kernels stay, and get the micro-kernels
    that their schedules call. Raises Unsupported as ``choose`` does.
    """
    total = Requirements()
    for node in graph.nodes():
        if isinstance(node, DenseNode):
            total = total + _implement_node(graph, node)
        if isinstance(node, KernelNode) and node.tree is not None:
            total = sum((choose(n, graph).requirements(n, graph) for n in _micro_kernels(graph, node)), total)
        if isinstance(node, Region):
            total = sum(map(implement, node.bodies), total)
        if isinstance(node, Repeat) and node.is_checked:
            own = Flags(includes=(str(INCLUDE),), headers=("daceopt/status.h",), version=headers_digest())
            total = total + Requirements(own)
    return total


def _implement_node(graph: Graph, node: DenseNode) -> Requirements:
    import dace

    if isinstance(node, Contraction):
        node = into_rows(graph, node)
    library = choose(node, graph)
    code, needs = library.emit(node, graph), library.requirements(node, graph)
    reads, writes = graph.reads(node), graph.writes(node)
    tasklet = dace.nodes.Tasklet(
        f"{label_of(node)}_{library.name}",
        _pointers(graph, reads),
        _pointers(graph, writes),
        code,
        dace.dtypes.Language.CPP,
        debuginfo=node.debuginfo,
    )
    tasklet.in_place, tasklet.called_library = node.in_place, library.name
    graph.remove(node)
    graph.add_node(tasklet, reads, writes)
    return needs


def _micro_kernels(graph: Graph, node: KernelNode) -> Iterator[Any]:
    """The micro-kernels of libraries that the schedule of a kernel calls."""
    if not microkernels.calls(node.tree):
        return
    kernel, tree = node.kernel, node.tree
    for tile in microkernels.tiles(kernel, tree, resolve_all(graph, kernel, tree)).values():
        if isinstance(tile, microkernels.TileProduct):
            yield microkernels.MicroProduct(kernel.label, tile.dtype)


def _pointers(graph: Graph, operands: Mapping[str, str]) -> dict[str, Any]:
    import dace

    return {connector: dace.pointer(types.bits(graph.dtype(name))) for connector, name in operands.items()}


# What a library computes nobody else does: its products may be rounded together with what they are added to.
_CONTRACTION = "-ffp-contract=fast"
# They include another library's headers and call it: more than -O1 takes seconds and gains nothing.
_ONLY_CALLS = {
    *("onednn_convolution.cpp", "onednn_quantized.cpp", "onednn_weights.cpp", "convolution_times.cpp"),
    *("process_group.cpp", "torch_algorithms.cpp", "torch_attention.cpp", "torch_call.cpp", "torch_device.cpp"),
}


def support(
    source: str,
    *,
    header: str = "",
    flags: Flags | None = None,
    define: str = "",
    version: str = "",
    standard: str = "",
    target: str = "cpu",
) -> Requirements:
    """Return requirements of a call into ``src/<source>``, declared in ``daceopt/<header>`` if generated code calls it.

    ``flags`` are the external library's, for that source and for linking; ``define`` is one macro, NAME=value;
    ``standard``: the C++ that its headers need, where that is more than ours. ``target``: the machine whose compiler
    takes the source, which begins with what kernels for a device have of ours.
    """
    own = Flags(includes=(str(INCLUDE),), version=f"{headers_digest()} {version}".strip())
    external = flags or Flags()
    macro = [f"-D{define}"] if define else []
    dialect = [*([f"-std={standard}"] if standard else []), *(["-O1"] if source in _ONLY_CALLS else [])]
    on_host = target == "cpu"
    options = Flags(compile=(*([_CONTRACTION] if on_host else []), *macro, *dialect))
    text = _source(source) if on_host else support_header("", ("cuda.h",)) + _source(source)
    compiled = own + Flags(includes=external.includes) + options
    job = CompileJob(text, "kernel", compiled, f"daceopt {source} {define}", target)
    frame = own + Flags(headers=(f"daceopt/{header}",) if header else (), link=external.link)
    return Requirements(frame, (job,))


def working_memory() -> Requirements:
    """What library calls keep for each thread (``daceopt/scratch.h``): compiled alike for all libraries, since a
    program that calls several of them links it once."""
    return support("scratch.cpp")


@cache
def _source(name: str) -> str:
    return (_HERE / "src" / name).read_text(encoding="utf-8")


@cache
def headers_digest() -> str:
    """Stands for the content of our own headers in cache keys."""
    digest = hashlib.sha256()
    for path in sorted(INCLUDE.rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
