"""Programs that are built, found in the cache or made: pairs of executables with the record of how they came about."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import daceopt.recipes
import daceopt.transformations
from daceopt import system
from daceopt._version import __version__
from daceopt.codegen.assemble import load_program
from daceopt.errors import BuildError, FallbackWarning, Unsupported
from daceopt.logs import caller_depth
from daceopt.passes import trace
from daceopt.programs.derivation import Derived, Source
from daceopt.runtime.executable import Executable
from daceopt.store import builders
from daceopt.store.cache import default_cache, is_key, key

if TYPE_CHECKING:
    import onnx

    from daceopt.ir.graph.graph import Graph
    from daceopt.ir.nodes.collective import Exchanged

REPORT = "report.json"
_REGISTRIES = (  # of what decides about code, each by itself: a warm start has imported some
    *("ops.core.registry", "libs.base", "autodiff.rules", "splits.rules"),
    *("capture.torch.table", "codegen.target", "codegen.toolchain"),
)


class CompiledPair:
    """A forward program, its backward program where gradients are wanted, and how they came about.

    ``report`` is plain JSON: ``history`` (one record per recipe step), ``choice`` (why this recipe), ``seconds`` per
    phase, ``fallbacks`` and ``hosted`` (operators without native form -> reason), ``notes`` (of the front end) and
    ``exchanges`` (of each program that has any, what its ranks exchange in turn).
    ``graphs`` are derived again on their first use after a warm start.
    """

    def __init__(self, report: dict[str, Any], forward: Executable, backward: Executable | None, source: Source):
        self.report, self.forward, self.backward = report, forward, backward
        self.cached = source.graphs is None
        self.recipe = source.recipe
        self.source = source

    @classmethod
    def of(cls, source: Source, forward: Executable, backward: Executable | None) -> CompiledPair:
        """The pair of programs that were made of ``source.graphs`` just now."""
        assert source.graphs is not None
        _warn(source.graphs.imported.fallbacks)
        return cls(report(source.graphs, []), forward, backward, source)

    @cached_property
    def graphs(self) -> Derived:
        return self.source.graphs or self.source.derive()

    @property
    def code(self) -> str:
        """A digest of the code of both directions."""
        programs = [p for p in (self.forward, self.backward) if p is not None]
        return key(*(program.sources.whole() for program in programs))

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model that was compiled. Raises Unsupported for what came from PyTorch."""
        if self.source.model is None:
            raise Unsupported("this program was not compiled from an ONNX model")
        return self.source.model


def find_or_build(source: Source, fingerprint: str) -> CompiledPair:
    """The programs of ``source`` from the cache, or built into it; ``fingerprint`` identifies what it loads."""
    rest = __version__, own_source(), _foreign_rules()
    mode = source.recipe.fingerprint(), source.verify or ""
    store = default_cache()
    identity = builders.choose(store, "pair", lambda machine: key("pair", fingerprint, *mode, machine, *rest))
    for _ in range(2):
        record = store.make("pair", identity, lambda entry: _write(entry, identity, source), _read)
        programs = [load_program(name, store) for name in record["programs"]]
        if None not in programs:
            forward, backward = (*programs, None)[:2]
            _warn(record["fallbacks"])
            return CompiledPair(record, forward, backward, source)  # type: ignore[arg-type]
        store.discard("pair", identity)
    raise BuildError(
        f"the cache in {store.folder} loses programs as soon as they are written; see `python -m daceopt doctor`"
    )


def report(derived: Derived, programs: Sequence[str]) -> dict[str, Any]:
    """What is kept with the programs, as plain JSON."""
    imported = derived.imported
    return {
        "programs": programs,
        "fallbacks": imported.fallbacks,
        "hosted": imported.hosted,
        "notes": imported.notes,
        "seconds": derived.seconds,
        "history": [vars(s) for s in derived.history],
        "choice": derived.choice,
        "exchanges": [exchanges for graph, _ in derived.directions() if (exchanges := _exchanges(graph))],
    }


def _read(folder: Path) -> dict[str, Any]:
    """What ``report`` kept. Raises ValueError where it is something else."""
    record = json.loads((folder / REPORT).read_text())
    kinds: dict[str, type] = dict.fromkeys(("programs", "history", "exchanges"), list)
    kinds |= dict.fromkeys(("fallbacks", "hosted", "notes", "seconds"), dict)
    wrong = [name for name, kind in kinds.items() if not isinstance(record[name], kind)]
    if wrong or not record["programs"] or not all(map(is_key, record["programs"])):
        raise ValueError(f"{REPORT} is no record of programs: {', '.join(wrong) or record['programs']}")
    return record


def _exchanges(graph: Graph) -> list[Exchanged]:
    """Those of the values of parameters, in the order in which they start."""
    from daceopt.ir.nodes.collective import CollectiveStart, exchanges_of

    return exchanges_of(graph, (n for n in graph.nodes() if isinstance(n, CollectiveStart) and n.parameters))


def _warn(fallbacks: dict[str, str]) -> None:
    for operator, reason in fallbacks.items():
        message = f"operator {operator} runs in ONNX Runtime: {reason}"
        warnings.warn(message, FallbackWarning, stacklevel=caller_depth())


def _write(folder: Path, identity: str, source: Source) -> None:
    from daceopt import libs
    from daceopt.codegen import build

    system.require_compiler()  # before the recipe runs for nothing
    derived = source.graphs = source.derive()
    _check_device(derived)
    with derived.time_phase("build"):
        names = build.build(identity, derived.directions(), libs.implement)
    builders.record(default_cache())
    _trace(derived, names)
    if source.verify == "numerics":
        with derived.time_phase("verify"):
            _check_built(derived, names)
    (folder / REPORT).write_text(json.dumps(report(derived, names), default=str))


def _trace(derived: Derived, names: Sequence[str]) -> None:
    """The code of the programs and the time of each phase, where tracing is on."""
    if trace.folder() is None:
        return
    for name, (graph, _) in zip(names, derived.directions()):
        program = load_program(name)
        if program is not None:
            shown = {"cpp": program.sources.whole(), "schedules.txt": "\n".join(_schedules(program))}
            trace.write(f"built-{graph.name}", {**shown, "json": json.dumps(derived.seconds, indent=1)})


def _schedules(program: Executable) -> Iterator[str]:
    for kernel, schedule in zip(program.manifest.kernels, program.sources.schedules, strict=True):
        yield f"# {kernel.label}: {', '.join(kernel.writes)}\n{schedule}"


def _check_device(derived: Derived) -> None:
    """Raise Unsupported where a call's arrays are not where the recipe lets programs run."""
    from daceopt.codegen import target

    device = derived.imported.device
    for graph, _ in derived.directions():
        device_target = target.get(graph.options.target)
        if device_target.device != device:
            reason = f"its arrays live on {device_target.device}, those of this call on {device}"
            advice = "take another recipe (auto is for either), or move them with .to()"
            raise Unsupported(f"a program for {device_target.name}: {reason}; {advice}")


def _check_built(derived: Derived, names: Sequence[str]) -> None:
    """Run what was compiled beside the interpreter. Raises VerificationError for a difference."""
    from daceopt.passes.verification_built import Built, check

    programs = [load_program(name) for name in names]
    check(*(Built(g, roles, p) for (g, roles), p in zip(derived.directions(), programs) if p is not None))


def _foreign_rules() -> list[str]:
    """What stands for all that users registered; nobody registers anything without importing the registry."""
    registries = [sys.modules.get(f"daceopt.{name}") for name in _REGISTRIES]
    return [registry.foreign_source() if registry is not None else "" for registry in registries]


def own_source() -> str:
    """Digest of daceopt's own code, so that an edited transformation or printer is never served from the cache.

    Of what files hold: builds that anybody can repeat give all files one time.
    """
    global _digest
    if _digest is None:
        folders = (*daceopt.__path__, *daceopt.recipes.__path__, *daceopt.transformations.__path__)
        _digest = key(*(part for folder in folders for part in _sources(folder)))
    return _digest


def _sources(folder: str) -> Iterator[str | bytes]:
    """Names and contents of all files of code."""
    for at, inner, names in os.walk(folder):
        inner.sort()
        for name in sorted(n for n in names if n.endswith((".py", ".h", ".cpp"))):
            path = os.path.join(at, name)  # noqa: PTH118 (hundreds of them, at every start)
            yield os.path.relpath(path, folder)
            yield Path(path).read_bytes()


_digest: str | None = None
