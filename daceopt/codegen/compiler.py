"""Compile C++ sources to objects in parallel, each distinct one once, and link them into a shared library."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from daceopt import progress, system
from daceopt.codegen import toolchain
from daceopt.codegen.cpu.toolchain import host
from daceopt.codegen.include import INCLUDE
from daceopt.errors import BuildError
from daceopt.store.cache import Cache, default_cache, key

logger = logging.getLogger("daceopt.build")

OBJECT = "object.o"
_CLANG_THREADS = Path(__file__).with_name("src") / "clang_threads.cpp"
_STDERR_LINES = 12
# The frame is a list of calls: higher levels compile no faster code, only slower. -O1 takes three times as long.
_FRAME = ("-Og", "-w")


@dataclass(frozen=True)
class Flags:
    """What a library's callers need: include folders, headers, compiler and link arguments.

    ``version`` says which version of the library they stand for: it enters the cache keys; headers are not read.
    """

    includes: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    compile: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    version: str = ""

    def __add__(self, other: Flags) -> Flags:
        return Flags(
            _union(self.includes, other.includes),
            _union(self.headers, other.headers),
            _union(self.compile, other.compile),
            _union(self.link, other.link),
            " ".join(_union(self.version.split(" "), other.version.split(" "))).strip(),
        )


@dataclass(frozen=True)
class CompileJob:
    """One source. ``kind``: ``kernel`` (loops, for the machine that ``target`` names) or ``frame`` (a program's calls,
    which the host runs)."""

    source: str
    kind: str = "kernel"
    flags: Flags = Flags()
    label: str = ""
    target: str = "cpu"

    @property
    def toolchain(self) -> toolchain.Toolchain:
        """What compiles it."""
        return toolchain.get(self.target)


@dataclass(frozen=True)
class Requirements:
    """What a program that calls libraries needs: ``flags`` for its frame and linking, ``jobs`` to compile beside it,
    ``declarations`` of what the frame calls in them and no header has.

    ``repeats``: what it starts on a device may be recorded and started again, since the host neither reads what kernels
    compute nor draws random numbers.
    """

    flags: Flags = Flags()
    jobs: tuple[CompileJob, ...] = ()
    declarations: tuple[str, ...] = ()
    repeats: bool = True

    def __add__(self, other: Requirements) -> Requirements:
        jobs = tuple(dict.fromkeys((*self.jobs, *other.jobs)))
        declarations = _union(self.declarations, other.declarations)
        return Requirements(self.flags + other.flags, jobs, declarations, self.repeats and other.repeats)


_always = Flags()


def always(flags: Flags) -> None:
    """Compile and link everything with ``flags``, too, in this process from now on: for sanitizers and profilers.

    Programs are cached without regard to them, so use a cache folder of its own.
    """
    global _always
    _always = flags


def compile_objects(jobs: Sequence[CompileJob], store: Cache | None = None, workers: int | None = None) -> list[Path]:
    """Return the object file of each job; at most ``workers`` (default: cores) compile at a time, equal jobs only once.

    Raises BuildError with the compiler's first messages and the place where the source was kept.
    """
    store = store or default_cache()
    system.require_compiler()
    keys = [object_key(job) for job in jobs]
    distinct = dict(zip(keys, jobs, strict=True))
    logger.info("%d sources to compile, %d of them distinct", len(jobs), len(distinct))
    threads = ThreadPoolExecutor(workers or system.cores(), thread_name_prefix="daceopt-compile")
    with progress.kernels(len(distinct)) as compiled, threads as pool:
        futures = {k: pool.submit(_compile, store, k, job) for k, job in distinct.items()}
        for future in futures.values():
            future.add_done_callback(lambda _: compiled.advance())
        try:
            objects = {k: future.result() for k, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [objects[k] for k in keys]


def compile_object(job: CompileJob, store: Cache) -> Path:
    """Return the object file of one job. Raises BuildError as ``compile_objects`` does."""
    return _compile(store, object_key(job), job)


def link(objects: Sequence[Path], target: Path, flags: Flags = Flags()) -> None:
    """Link objects into the shared library ``target``. Its symbols resolve inside it first, whatever else is loaded.

    Raises BuildError with the linker's first messages.
    """
    compiler = system.require_compiler()
    threads = _clang_threads() if compiler.family == "clang" else ("-fopenmp",)
    inside = () if os.uname().sysname == "Darwin" else ("-Wl,-Bsymbolic", "-Wl,--no-undefined")
    files = (*map(str, objects), "-o", str(target))
    rest = [*inside, *files, *flags.link, *_always.link]
    for linker in _linkers():
        process = _start([*compiler.command, "-shared", *linker, *rest, *threads], "", target.parent)
        if not process.returncode:
            return
    raise BuildError(f"cannot link {target.name}: {_summary(process)}")


def _clang_threads() -> tuple[str, ...]:
    """What clang's OpenMP calls, on the threads of PyTorch. Raises BuildError where PyTorch brings none."""
    library = system.libgomp()
    if library is None:
        raise BuildError(f"clang needs the libgomp of PyTorch, which has none here; {system.INSTALL_COMPILER}")
    job = CompileJob(_CLANG_THREADS.read_text(), "frame", label="threads")
    return str(compile_object(job, default_cache())), str(library)


def _linkers() -> list[tuple[str, ...]]:
    """gold where gcc has it: it takes 0.02 s where ld takes 0.06, for a library of any size. Then the compiler's own:
    where a compiler was moved, gold looks for its libraries in the folder that it came from."""
    return [("-fuse-ld=gold",), ()] if system.program("ld.gold") else [()]


def object_key(job: CompileJob) -> str:
    """Return the cache key of a job's object: source, flags, versions, compiler and CPU."""
    headers = (job.flags.includes, job.flags.headers, job.flags.version, _own_headers())
    compiler = system.fingerprint(), job.toolchain.fingerprint()
    return key("object", job_source(job), job_command(job), headers, *compiler)


def _compile(store: Cache, name: str, job: CompileJob) -> Path:
    return store.build("object", name, lambda folder: _write_object(store, folder, name, job)) / OBJECT


def _write_object(store: Cache, folder: Path, name: str, job: CompileJob) -> None:
    command = [*job_command(job), *(f"-I{path}" for path in [str(INCLUDE), *job.flags.includes])]
    command += ["-x", job.toolchain.language, "-c", _input_argument(job, folder), "-o", str(folder / OBJECT)]
    process = _start(command, job_source(job), folder)
    if process.returncode == 0:
        return
    if "No space left on device" in process.stderr or "Disk quota exceeded" in process.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))  # the cache then tries elsewhere
    copy = store.keep_failed(f"{name}.cpp", job_source(job))
    store.keep_failed(f"{name}.log", " ".join(command) + "\n\n" + process.stderr)
    raise BuildError(
        f"the C++ compiler rejected {job.kind} {job.label or name[:12]}: {_summary(process)}\n"
        f"The source and all messages: {copy or 'not kept, for want of a folder to write to'}"
    )


def _input_argument(job: CompileJob, folder: Path) -> str:
    """Where the compiler reads the source: C++ comes on standard input."""
    if job.toolchain.language == "c++":
        return "-"
    path = folder / f"kernel.{job.toolchain.language}"
    path.write_text(job_source(job))
    return str(path)


def job_command(job: CompileJob) -> tuple[str, ...]:
    """The compiler with all flags but those that name files."""
    if job.kind == "kernel":
        compiler = (*job.toolchain.command(), *job.toolchain.arithmetic(job.source))
    else:
        compiler = host(*_FRAME)
    return (*compiler, *job.flags.compile, *_always.compile)


def job_source(job: CompileJob) -> str:
    """Return the text to compile: the library headers that the job asks for go first."""
    return "".join(f"#include <{header}>\n" for header in job.flags.headers) + job.source


@cache
def _own_headers() -> str:
    """Return a digest of our own headers, which every source may include."""
    return key(*(path.read_bytes() for path in sorted(INCLUDE.rglob("*.h"))))


def _start(command: Sequence[str], source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the compiler with its temporary files in ``folder`` and English messages."""
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"}
    if Path(command[0]).name == "zig":  # compiles its C and C++ libraries once, by default into the user's home
        libraries = str(default_cache().compiler_folder())
        environment |= {"ZIG_GLOBAL_CACHE_DIR": libraries, "ZIG_LOCAL_CACHE_DIR": libraries}
    try:
        return subprocess.run(command, input=source, capture_output=True, text=True, cwd=folder, env=environment)
    except OSError as error:
        raise BuildError(f"cannot start {command[0]}: {error}; {system.INSTALL_COMPILER}") from error


def _summary(process: subprocess.CompletedProcess[str]) -> str:
    if process.returncode == -signal.SIGKILL or "Killed signal terminated" in process.stderr:
        return "it was killed, probably for want of memory; close other programs and try again"
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    shown = "\n".join(f"  {line}" for line in lines[:_STDERR_LINES])
    more = f"\n  ... and {len(lines) - _STDERR_LINES} more lines" if len(lines) > _STDERR_LINES else ""
    return f"exit status {process.returncode}\n{shown}{more}"


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
