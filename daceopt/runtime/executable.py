"""A built program, loaded: one C call per run, nothing of DaCe needed."""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from daceopt import system
from daceopt.errors import ArgumentsChanged, BuildError, EarlierCallFailed, RunError, RunIndexError, SizesError
from daceopt.runtime.manifest import Manifest
from daceopt.runtime.sources import FILE, Sources, heading, matching

logger = logging.getLogger("daceopt.build")

ABI_VERSION = 6
LIBRARY = "program.so"
MANIFEST = "manifest.json"
CONSTANTS = "constants.npz"
# What `daceopt_run` returns; entry.py writes the other side.
OK, FAILED, BAD_INDEX, CHANGED, EARLIER = 0, 1, 2, 3, 4

Mark = ctypes.CFUNCTYPE(None, ctypes.c_int64)
"""What a run may tell of its nodes: the number of each before it runs, and how many there are at the end."""

_LOADED: dict[Path, Executable] = {}
_scratch: int | None = None  # where the programs of this process have the memory that their calls share
_LOADING = threading.Lock()


@dataclass(frozen=True)
class ProgramSizes:
    """What one choice of symbols needs: bytes of the arena and of the saved block, and the shape of each output."""

    arena: int
    saved: int
    shapes: tuple[tuple[int, ...], ...]


def load(entry: Path) -> Executable:
    """Return the program of a cache entry, loaded once per process.

    BuildError when it cannot be loaded (damaged, other ABI, a library gone): discard the entry and build again.
    """
    with _LOADING:
        executable = _LOADED.get(entry)
        if executable is None:
            executable = _LOADED[entry] = Executable(entry)
        return executable


KNOWN_SIZES = 1024
"""Choices of the symbols of which a program keeps what they mean for it."""


class Executable:
    """A loaded program; holds no state between calls, so any number of threads may run it, each with its own arena."""

    def __init__(self, entry: Path) -> None:
        self.entry = entry
        self._prepare(Manifest.from_json(_read(entry / MANIFEST)))
        _ = self.constants, self._functions  # all of it: the entry may be gone from the cache later on

    def _prepare(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._pack = struct.Struct(f"{self.manifest.pointer_count}P").pack
        self._pack_values = struct.Struct(f"{len(self.manifest.symbols)}q").pack
        self._sizes: dict[tuple[int, ...], ProgramSizes] = {}

    @cached_property
    def _functions(self) -> Exports:
        library = open_library(self.entry / LIBRARY)
        functions = Exports(library)
        functions.check(self.manifest)
        _share_scratch(library)
        return functions

    def run(
        self, pointers: Sequence[int], symbols: tuple[int, ...] = (), mark: Callable[[int], None] | None = None
    ) -> None:
        """Run the program on addresses in the manifest's order, for the given symbol values; releases the GIL.

        ``mark``, a ``Mark``, is called with the number of each of ``manifest.kernels`` before it runs.

        Raises RunIndexError for an index outside its array, RunError for any other error of the program,
        ArgumentsChanged where inputs are not what they were, and EarlierCallFailed where kernels of a device have
        reported something since the call before. A list of addresses of the wrong length is a struct.error.
        """
        if mark is None:
            status = self._functions.run(self._pack(*pointers), self._pack_symbols(symbols))
        else:
            status = self._functions.run_marked(self._pack(*pointers), self._pack_symbols(symbols), mark)
        if status:
            self._fail(status)

    def run_timed(self, pointers: Sequence[int], symbols: tuple[int, ...], times: ctypes.Array[ctypes.c_int64]) -> None:
        """The same; ``times``, one more than ``manifest.kernels``, get the nanoseconds of a clock before each of them,
        and behind the last: that of the device, where kernels have a stream, and the run waits for its end."""
        if status := self._functions.run_timed(self._pack(*pointers), self._pack_symbols(symbols), times):
            self._fail(status)

    def raise_earlier(self) -> None:
        """Raise EarlierCallFailed where kernels of a device have reported something since the call before."""
        if status := self._functions.earlier():
            self._fail(status)

    def sizes(self, symbols: tuple[int, ...] = ()) -> ProgramSizes:
        """Return what a call with these symbol values needs; computed once for each of the latest."""
        known_sizes = self._sizes.get(symbols)
        if known_sizes is None:
            if len(self._sizes) >= KNOWN_SIZES:
                self._sizes.clear()
            known_sizes = self._sizes[symbols] = self._compute_sizes(symbols)
        return known_sizes

    @cached_property
    def constants(self) -> tuple[np.ndarray, ...]:
        """Arrays to pass as constants, in the manifest's order (C-contiguous). Raises BuildError."""
        tensors, path = self.manifest.constants, self.entry / CONSTANTS
        if not tensors:
            return ()
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                arrays = tuple(np.ascontiguousarray(stored[tensor.name]) for tensor in tensors)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise BuildError(f"cannot read {path}: {error}; it has to be built again") from error
        return arrays

    @cached_property
    def sources(self) -> Sources:
        """The generated C++, by kernel. Raises BuildError when it was not kept."""
        return Sources.from_bytes(_read(self.entry / FILE))

    def source(self, kernel: str | None = None) -> str:
        """The generated C++: all of it, or that of the kernels whose label contains ``kernel``.

        Raises DaceoptError when there is no such kernel.
        """
        if kernel is None:
            return self.sources.whole()
        kernels = self.manifest.kernels
        chosen = matching([k.label for k in kernels], kernel)
        return "\n".join(f"{heading(kernels[k].label, kernels[k].writes)}\n{self.sources.of(k)}" for k in chosen)

    def _compute_sizes(self, symbols: tuple[int, ...]) -> ProgramSizes:
        if violated := self.manifest.violations(symbols):
            raise SizesError(f"{self.manifest.name} is for sizes with {violated[0]}; got {symbols}")
        ranks = [tensor.rank for tensor in self.manifest.outputs]
        out = (ctypes.c_int64 * (2 + sum(ranks)))()
        self._functions.sizes(self._pack_symbols(symbols), out)
        extents = iter(out[2:])
        shapes = tuple(tuple(next(extents) for _ in range(rank)) for rank in ranks)
        if min(out) < 0:
            raise RunError(f"{self.manifest.name}: symbols {symbols} give negative sizes {list(out)}")
        return ProgramSizes(out[0], out[1], shapes)

    def _pack_symbols(self, symbols: tuple[int, ...]) -> bytes:
        try:
            return self._pack_values(*symbols)
        except struct.error:
            expected = [symbol.name for symbol in self.manifest.symbols]
            raise RunError(f"{self.manifest.name}: expected values of the symbols {expected}, got {symbols}") from None

    def _fail(self, status: int) -> None:
        message = (self._functions.error() or b"unknown error").decode("utf-8", "replace")
        if status == CHANGED:
            raise ArgumentsChanged(f"{self.manifest.name} failed while it wrote its arguments: {message}")
        if status == EARLIER:
            raise EarlierCallFailed(f"{self.manifest.name} failed in an earlier call: {message}")
        raise (RunIndexError if status == BAD_INDEX else RunError)(f"{self.manifest.name}: {message}")


class TimedExecutable(Executable):
    """A loaded program whose runs note what its kernels take; ``seconds``: of each of ``manifest.kernels``, in the
    latest run."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        # a run waits for its end, as no recording of it can
        self._prepare(replace(executable.manifest, repeats=False))
        self.seconds: list[float] = []

    @cached_property
    def constants(self) -> tuple[np.ndarray, ...]:
        return self._executable.constants

    @cached_property
    def sources(self) -> Sources:
        return self._executable.sources

    @cached_property
    def _functions(self) -> Exports:
        return self._executable._functions

    def run(
        self, pointers: Sequence[int], symbols: tuple[int, ...] = (), mark: Callable[[int], None] | None = None
    ) -> None:
        """As that of the executable, without marks."""
        times = (ctypes.c_int64 * (len(self.manifest.kernels) + 1))()
        self.run_timed(pointers, symbols, times)
        self.seconds = [1e-9 * (after - before) for before, after in pairwise(times)]

    def by_array(self) -> dict[str, float]:
        """The seconds of the latest run, by each array that a kernel writes."""
        kernels = zip(self.manifest.kernels, self.seconds, strict=True)
        return {array: seconds for kernel, seconds in kernels for array in kernel.writes}


class Exports:
    """What a library exports for one of its programs, whose names end in ``suffix``.

    BuildError when they are not there or of another ABI.
    """

    def __init__(self, library: ctypes.CDLL, suffix: str = "") -> None:
        version = getattr(library, f"daceopt_abi_version{suffix}", None)
        abi = version() if version else None
        self._library = library
        if abi != ABI_VERSION:
            self._refuse(f"has ABI version {abi}, expected {ABI_VERSION}")
        self.run = library[f"daceopt_run{suffix}"]
        self.run.argtypes, self.run.restype = (ctypes.c_char_p, ctypes.c_char_p), ctypes.c_int
        self.run_marked = library[f"daceopt_run_marked{suffix}"]
        self.run_marked.argtypes, self.run_marked.restype = (ctypes.c_char_p, ctypes.c_char_p, Mark), ctypes.c_int
        self.run_timed = library[f"daceopt_run_timed{suffix}"]
        self.run_timed.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
        self.run_timed.restype = ctypes.c_int
        self.earlier = library[f"daceopt_earlier{suffix}"]
        self.earlier.argtypes, self.earlier.restype = (), ctypes.c_int
        self.error = library[f"daceopt_error{suffix}"]
        self.error.argtypes, self.error.restype = (), ctypes.c_char_p
        self.sizes = library[f"daceopt_sizes{suffix}"]
        self.sizes.argtypes, self.sizes.restype = (ctypes.c_char_p, ctypes.c_void_p), None
        self.outputs = library[f"daceopt_outputs{suffix}"]
        self.outputs.argtypes, self.outputs.restype = (), ctypes.c_char_p

    def check(self, manifest: Manifest) -> None:
        """Raise BuildError when the library writes other results than ``manifest`` says: their types and ranks."""
        results = (self.outputs() or b"").decode()
        if results != manifest.results:
            self._refuse(f"writes {results}, but its manifest says {manifest.results}")

    def _refuse(self, why: str) -> None:
        # Still loaded, it would be found under its name instead of the one built in its place.
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(self._library._handle))
        raise BuildError(f"{self._library._name} {why}; it has to be built again")


def open_library(path: Path, libraries: Sequence[str] = ()) -> ctypes.CDLL:
    """Load a built library after those that it needs. Raises BuildError."""
    try:
        for needed in (*_openmp_runtime(), *libraries):
            ctypes.CDLL(needed, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise BuildError(f"cannot load {path}: {error}; it has to be built again") from error


def _share_scratch(library: ctypes.CDLL) -> None:
    """Have library calls of all programs work in the memory of the first one, which stays loaded (``scratch.cpp``)."""
    global _scratch
    share = getattr(library, "daceopt_share_scratch", None)
    if share is not None:
        share.argtypes, share.restype = (ctypes.c_void_p,), ctypes.c_void_p
        _scratch = share(_scratch)


def _openmp_runtime() -> list[str]:
    """Return torch's libgomp, to be loaded before the system's of the same name: two would fight over the cores."""
    folder = system.torch_library_folder()
    runtime = folder / "libgomp.so.1" if folder else None
    return [str(runtime)] if runtime and runtime.exists() else []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(f"cannot read {path}: {error}; it has to be built again") from error
