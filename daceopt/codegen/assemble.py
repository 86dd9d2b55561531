"""From sources to a loaded program: compile in parallel, link, store with its manifest and constants, load."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from daceopt import system
from daceopt.codegen.compiler import CompileJob, Flags, compile_objects, link
from daceopt.errors import BuildError
from daceopt.runtime.executable import ABI_VERSION, CONSTANTS, LIBRARY, MANIFEST, Executable, load
from daceopt.runtime.manifest import Manifest
from daceopt.runtime.sources import FILE, Sources
from daceopt.store.cache import Cache, default_cache, key

logger = logging.getLogger("daceopt.build")
KIND = "program"


def program_key(*parts: object) -> str:
    """Return the cache key of a program described by plain ``parts``, on this machine and with this ABI."""
    return key(KIND, ABI_VERSION, system.fingerprint(), *parts)


def load_program(name: str, store: Cache | None = None) -> Executable | None:
    """Return the cached program of that key, loaded; None if there is none. One that does not load is removed."""
    store = store or default_cache()
    entry = store.get(KIND, name)
    if entry is None:
        return None
    try:
        return load(entry)
    except BuildError as error:
        logger.warning("%s", error)
        store.discard(KIND, name)
        return None


def require_program(name: str) -> Executable:
    """The program of that key, which was just built. Raises BuildError where the cache does not have it."""
    program = load_program(name)
    if program is None:
        raise BuildError("the cache loses programs as soon as they are written; see `python -m daceopt doctor`")
    return program


def build_program(
    name: str,
    manifest: Manifest,
    jobs: Sequence[CompileJob],
    constants: Mapping[str, np.ndarray] | None = None,
    store: Cache | None = None,
    sources: Sources | None = None,
) -> Executable:
    """Compile and link ``jobs``, store the result under the key ``name`` and load it; what is cached is not redone.

    ``sources`` are kept beside it for people to read.

    Raises BuildError when a source does not compile, the objects do not link or the result does not load.
    """
    store = store or default_cache()
    stored = load_program(name, store)
    if stored is not None:
        return stored
    objects = compile_objects(jobs, store)  # outside the program's lock, so that equal kernels of others do not wait
    flags = reduce(Flags.__add__, (job.flags for job in jobs), Flags())

    def write(folder: Path) -> None:
        _write(folder, manifest, objects, flags, constants or {})
        (folder / FILE).write_bytes((sources or Sources()).to_bytes())

    return load(store.build(KIND, name, write))


def _write(
    folder: Path, manifest: Manifest, objects: Sequence[Path], flags: Flags, constants: Mapping[str, np.ndarray]
) -> None:
    link(list(dict.fromkeys(objects)), folder / LIBRARY, flags)
    (folder / MANIFEST).write_text(manifest.to_json())
    missing = [tensor.name for tensor in manifest.constants if tensor.name not in constants]
    if missing:
        raise BuildError(f"{manifest.name}: no values were given for the constants {missing}")
    if manifest.constants:
        np.savez(folder / CONSTANTS, **{tensor.name: constants[tensor.name] for tensor in manifest.constants})
