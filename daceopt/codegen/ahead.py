"""Sources that a program will probably need, compiled into the cache while its graphs are still rewritten."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daceopt import system
from daceopt.codegen.compiler import CompileJob, compile_object
from daceopt.errors import BuildError
from daceopt.store.cache import Cache, default_cache

logger = logging.getLogger("daceopt.build")
_asked: set[tuple[Path, CompileJob]] = set()  # by the cache's folder: once in a process


def start(jobs: Sequence[CompileJob]) -> None:
    """Compile ``jobs`` in threads of their own, in silence: whoever needs an object finds it or waits for it, and who
    asks for one that could not be compiled gets the error."""
    store = default_cache()
    fresh = [job for job in jobs if (store.folder, job) not in _asked]
    if not fresh:
        return
    _asked.update((store.folder, job) for job in fresh)
    pool = ThreadPoolExecutor(system.cores(), thread_name_prefix="daceopt-ahead")
    for job in fresh:
        pool.submit(_compile, store, job)
    pool.shutdown(wait=False)


def _compile(store: Cache, job: CompileJob) -> None:
    try:
        compile_object(job, store)
    except (BuildError, OSError) as error:
        logger.debug("%s not compiled ahead: %s", job.label, error)
