"""What this machine has and lacks for daceopt, and what to install: the report of ``python -m daceopt doctor``."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from daceopt import system, versions
from daceopt.errors import DaceoptError
from daceopt.store.cache import default_cache

OK, NOTE, MISSING = "ok", "note", "MISSING"
# The versions that the tests run with, first that of constraints.txt; others may work.
_TESTED = {
    "torch": ("2.13.0", "2.11.0", "2.12.1", "2.14.1", "2.15.0"),
    "dace": ("1.0.2",),
    "numpy": ("1.26.4", "2.4.6", "2.5.5"),
    "sympy": ("1.14.0",),
    "onnx": ("1.23.2",),
    "onnxruntime": ("1.31.1", "1.32.0"),
}
_OPTIONAL_PACKAGES = frozenset({"onnxruntime"})


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it stands (``ok``, ``note``, ``MISSING``), what was found."""

    topic: str
    status: str
    detail: str
    advice: str = ""


def report() -> list[Finding]:
    """Look at compiler, CPU, threads, packages, libraries and cache; never raises for something that is missing."""
    parts: list[Callable[[], Iterator[Finding]]] = [
        _python,
        _compiler,
        _cpu,
        _threads,
        _rates,
        _packages,
        _libraries,
        _devices,
        _cache,
    ]
    return list(chain.from_iterable(part() for part in parts))


def render(findings: list[Finding]) -> str:
    """Return the report as text, one line per finding and one more for each advice."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:8}{finding.topic:{width}}  {finding.detail}")
        if finding.advice:
            lines.append(f"{'':8}{'':{width}}  -> {finding.advice}")
    missing = sum(finding.status == MISSING for finding in findings)
    lines.append("")
    lines.append(f"{missing} needed things are missing." if missing else "Everything needed is there.")
    return "\n".join(lines)


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--calibrate", action="store_true", help="measure the rates of the cost model again")


def run(options: Namespace) -> int:
    """Print the report; return 1 if something needed is missing, else 0."""
    if getattr(options, "calibrate", False):
        importlib.import_module("daceopt.libs")  # which enter what is measured
        importlib.import_module("daceopt.cost.rates").calibrate()
    findings = report()
    print(render(findings))
    return int(any(finding.status == MISSING for finding in findings))


def _python() -> Iterator[Finding]:
    advice = versions.misfits().get("python", "")
    yield Finding("python", MISSING if advice else OK, sys.version.split()[0], advice)


def _compiler() -> Iterator[Finding]:
    compiler = system.compiler()
    if compiler is None:
        yield Finding("C++ compiler", MISSING, "none", system.INSTALL_COMPILER)
        return
    status = MISSING if compiler.misfit else OK
    yield Finding("C++ compiler", status, f"{compiler.version} ({' '.join(compiler.command)})", compiler.misfit)
    if system.openmp_works():
        yield Finding("OpenMP", OK, f"{system.cores()} threads")
    else:
        advice = "install the compiler's OpenMP runtime (Debian: `apt-get install libgomp1`); clang takes PyTorch's"
        yield Finding("OpenMP", MISSING, f"{compiler.command[0]} -fopenmp does not work", advice)


def _cpu() -> Iterator[Finding]:
    caches = system.caches()
    sizes = ", ".join(f"L{level} {_size(n)}" for level, n in enumerate((caches.l1, caches.l2, caches.l3), 1) if n)
    yield Finding("CPU", OK, f"{system.cpu_name()}, {system.cores()} cores, {sizes or 'cache sizes unknown'}")
    yield Finding("vector width", OK, f"{system.vector_bits()} bits")
    lacking = {"logf", "tanhf", "erff"} - system.vector_math()
    compiler = system.compiler()
    if compiler and compiler.family == "clang":
        advice = "kernels with tanh, sin, cos, log or pow are 15 to 30 times as fast with gcc"
        yield Finding("vector math", NOTE, "clang does not call the functions of libmvec", advice)
    elif lacking:
        advice = "kernels use scalar functions instead; a system with glibc 2.35 or newer on x86-64 has them all"
        yield Finding("vector math", NOTE, f"glibc {system.glibc_version() or '-'} lacks {sorted(lacking)}", advice)
    else:
        yield Finding("vector math", OK, f"libmvec of glibc {system.glibc_version()}, tanhf and erff included")


def _devices() -> Iterator[Finding]:
    """What CUDA needs: its compiler, a driver with devices, and a build of torch for them. Nobody else misses it."""
    cuda = importlib.import_module("daceopt.codegen.cuda.toolchain")
    if cuda.nvcc() is None:
        yield Finding("CUDA compiler", NOTE, "none", cuda.INSTALL)
    else:
        purpose = "for the devices of this machine" if cuda.has_device() else "for compute capability 8.0 and later"
        yield Finding("CUDA compiler", OK, f"{cuda.nvcc()}: {cuda.version()}, {purpose}")
    driver = cuda.driver()
    if driver is None:
        yield Finding("CUDA devices", NOTE, "no driver", "programs for cuda are built, but run only where a device is")
        return
    yield Finding("CUDA driver", OK, driver)
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        yield Finding("CUDA devices", NOTE, f"torch cannot be imported: {error}")
        return
    if not torch.cuda.is_available():
        advice = "install a build of torch with CUDA: tensors live on a device by torch alone"
        yield Finding("CUDA devices", NOTE, f"torch {torch.__version__} sees none", advice)
        return
    for k in range(torch.cuda.device_count()):
        one = torch.cuda.get_device_properties(k)
        yield Finding(
            f"cuda:{k}", OK, f"{one.name}, compute capability {one.major}.{one.minor}, {_size(one.total_memory)}"
        )


def _threads() -> Iterator[Finding]:
    """How many threads programs run on, and who said so."""
    allowed, installed = system.cores(), os.cpu_count() or 1
    setting = os.environ.get("OMP_NUM_THREADS", "").strip()
    try:
        used = importlib.import_module("torch").get_num_threads()
    except ImportError as error:
        yield Finding("threads", NOTE, f"{allowed} cores; torch cannot be imported: {error}")
        return
    parts = [f"torch and daceopt use {used}", f"{allowed} of {installed} cores are ours"]
    parts.append(f"OMP_NUM_THREADS={setting}" if setting else "OMP_NUM_THREADS is not set")
    advice = ""
    if used > allowed:
        advice = f"more threads than cores wait for each other: set OMP_NUM_THREADS={allowed}"
    elif used < allowed and not setting:
        advice = f"OMP_NUM_THREADS={allowed} would use all cores, if they share no arithmetic units"
    yield Finding("threads", NOTE if used > allowed else OK, ", ".join(parts), advice)


def _rates() -> Iterator[Finding]:
    """What the cost model decides by, if it has been measured here."""
    try:
        importlib.import_module("daceopt.libs")  # which enter what is measured
        measured = importlib.import_module("daceopt.cost.rates").measured_rates()
    except ImportError as error:
        yield Finding("cost model", NOTE, f"cannot be imported: {error}", "install the packages named below")
        return
    if measured is None:
        advice = "it is measured when it is needed first, or now with `python -m daceopt doctor --calibrate`"
        yield Finding("cost model", NOTE, "not measured yet on this machine", advice)
        return
    rates = [f"{measured.alone[0][1] / 1e9:.0f} to {measured.alone[-1][1] / 1e9:.0f} GB/s a core"]
    rates += [
        f"{measured.together[-1][1] / 1e9:.0f} GB/s of memory",
        f"{1e-9 / measured.operation:.0f} G operations/s a core",
    ]
    yield Finding("cost model", OK, f"threads start in {1e6 * measured.region:.1f} us, {', '.join(rates)}")
    yield _model_error()


def _model_error() -> Finding:
    """How far modelled times were from measured ones here, by class of kernel."""
    errors = importlib.import_module("daceopt.cost.kernel_class").last_errors()
    if errors is None:
        advice = "`python -m benchmarks cost-model` in a checkout measures it; `explain` says it of one model"
        return Finding("its error", NOTE, "not measured on this machine", advice)
    texts = [f"{name} {e.factor:.2f} ({e.share:.0%} of {e.count} within 1.25)" for name, e in errors.items()]
    return Finding("its error", OK, "factors " + ", ".join(texts))


def _packages() -> Iterator[Finding]:
    for name, tested in _TESTED.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            status = NOTE if name in _OPTIONAL_PACKAGES else MISSING
            advice = versions.misfits().get(name, f"`pip install {name}=={tested[0]}`")
            yield Finding(name, status, "not installed", advice)
            continue
        if name in versions.misfits():
            yield Finding(name, MISSING, version, versions.misfits()[name])
            continue
        same = version.split("+")[0] in tested
        yield Finding(name, OK if same else NOTE, version, "" if same else f"tested with {', '.join(tested)}")


def _libraries() -> Iterator[Finding]:
    """Each dense library with its version, and for each kind of node the first one that is there."""
    try:
        libs = importlib.import_module("daceopt.libs")
    except ImportError as error:
        yield Finding("libraries", MISSING, f"cannot be imported: {error}", "install the packages named above")
        return
    present = set()
    for name in libs.names():
        lack = libs.get(name).available()
        if lack is None:
            present.add(name)
        # A library that is absent leaves its work to the next in line; what that leaves undone is said below.
        yield (
            Finding(name, NOTE, lack.what, lack.install)
            if lack
            else Finding(name, OK, libs.get(name).version() or "built in")
        )
    for kind in libs.PREFERENCE:
        usable = [name for name in libs.candidates(kind) if name in present]
        advice = f"install one of {', '.join(libs.candidates(kind))}" if not usable else ""
        yield Finding(
            kind, OK if usable else NOTE, f"uses {', then '.join(usable)}" if usable else "no library", advice
        )


def _cache() -> Iterator[Finding]:
    cache = default_cache()
    try:
        writable = os.access(cache.scratch(), os.W_OK)
    except DaceoptError as error:
        yield Finding("cache", MISSING, str(error))
        return
    stats = cache.stats()
    usage = f"{cache.folder}: {sum(stats.entries.values())} entries, {_size(stats.total_bytes)} of {_size(stats.limit)}"
    usable = writable and cache.folder in cache.scratch().parents
    advice = "" if usable else "it cannot be written: models are built again in each process; set DACEOPT_CACHE_DIR"
    yield Finding("cache", OK if usable else NOTE, usage, advice)


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
