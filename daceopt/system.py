"""What this machine has: compiler, OpenMP, vector width and math, cores, caches; each is found once per process."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from daceopt import versions
from daceopt.errors import BuildError

INSTALL_COMPILER = (
    "install one (Debian/Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; conda: `conda install -c "
    "conda-forge gxx`; macOS: `xcode-select --install`; from PyPI: `pip install ziglang`), or set the environment "
    "variable CXX to its path"
)
OLDEST = {"gcc": 10, "clang": 13}
"""The first release of each family that compiles what daceopt writes: gcc 9 lacks ``__has_builtin``."""
_OPENMP_PROBE = "#include <omp.h>\nint main() { return omp_get_max_threads() > 0 ? 0 : 1; }\n"
NATIVE = "native"
# Levels of x86-64 (its psABI): the vector units that a CPU of that level lacks.
_BEYOND = {
    "x86-64-v3": re.compile(r"avx512|avx_|amx|vaes|vpclmul|gfni"),
    "x86-64-v4": re.compile(r"avx512(?!f$|bw$|cd$|dq$|vl$)|avx_|amx|vaes|vpclmul|gfni"),
}
# float32 functions of which kernels may call a vector form.
_MVEC_FUNCTIONS = ("logf", "sinf", "cosf", "powf", "tanhf", "erff", "atanhf", "log1pf", "expm1f")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that starts it, its family (``gcc`` or ``clang``) and its full version line."""

    command: tuple[str, ...]
    family: str
    version: str

    @property
    def misfit(self) -> str:
        """That it is too old, and what to do, in one line; empty if it is not."""
        number = re.search(r"(\d+)\.\d", re.sub(r"\(.*?\)", "", self.version))  # not that of a distribution
        oldest = OLDEST[self.family]
        if number is None or int(number[1]) >= oldest:
            return ""
        return f"{self.version!r} is too old, {self.family} {oldest} is the first that will do; {INSTALL_COMPILER}"


@dataclass(frozen=True)
class Caches:
    """Data-cache sizes in bytes as one core sees them; 0 = not known."""

    l1: int
    l2: int
    l3: int


@cache
def compiler() -> Compiler | None:
    """Return the compiler to use: ``$CXX`` if set, else the first of g++, clang++, c++ on PATH, else that of the
    package ziglang; None if there is none.

    g++ goes first because its vectorizer knows the functions of glibc's libmvec.
    """
    variable = os.environ.get("CXX", "").strip()
    candidates = [shlex.split(variable)] if variable else [["g++"], ["clang++"], ["c++"], *_zig()]
    for command in candidates:
        path = shutil.which(command[0])
        version = _version_line([path, *command[1:]]) if path else ""
        if path and version:
            return Compiler((path, *command[1:]), "clang" if "clang" in version.lower() else "gcc", version)
    return None


def _zig() -> list[list[str]]:
    """Zig's clang, if its package is installed. Left to itself it traps where signed numbers overflow."""
    spec = importlib.util.find_spec("ziglang")
    program = Path(spec.origin).with_name("zig") if spec and spec.origin else None
    return [[str(program), "c++", "-fno-sanitize=all"]] if program and program.exists() else []


def require_compiler() -> Compiler:
    """Return ``compiler()`` or raise BuildError that says what to install."""
    command = compiler()
    if command is not None and not command.misfit:
        return command
    if command is not None:
        raise BuildError(f"a C++ compiler is needed to build the model: {command.misfit}")
    variable = os.environ.get("CXX", "").strip()
    what = (
        f"CXX={variable!r} does not start a compiler"
        if variable
        else "none of g++, clang++, c++ is on PATH, nor is the package ziglang installed"
    )
    raise BuildError(f"a C++ compiler is needed to build the model: {what}; {INSTALL_COMPILER}")


@cache
def program(name: str) -> Path | None:
    """Return where gcc finds a program of its own, such as a linker; None where it has none, or another compiler is."""
    command = compiler()
    if command is None or command.family != "gcc":
        return None
    answer = subprocess.run([*command.command, f"-print-prog-name={name}"], capture_output=True, text=True, timeout=60)
    path = shutil.which(answer.stdout.strip())
    return Path(path) if path else None


@cache
def openmp_works() -> bool:
    """Compile and run a two-line OpenMP program; False when the compiler or its OpenMP runtime is missing."""
    command = compiler()
    if command is None:
        return False
    if command.family == "clang":
        return libgomp() is not None
    with tempfile.TemporaryDirectory(prefix="daceopt-") as folder:
        source, binary = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(_OPENMP_PROBE)
        built = _quiet([*command.command, "-fopenmp", str(source), "-o", str(binary)])
        return built and _quiet([str(binary)])


@cache
def march() -> str:
    """Return the CPU that code is compiled for, as ``-march`` names it: this one, or the older one that
    ``$DACEOPT_MARCH`` names. Raises BuildError for another name."""
    name = os.environ.get("DACEOPT_MARCH", "").strip() or NATIVE
    if name != NATIVE and name not in _BEYOND:
        raise BuildError(f"DACEOPT_MARCH={name!r} is no CPU to compile for: expected {NATIVE}, {', '.join(_BEYOND)}")
    return name


@cache
def cpu_features() -> frozenset[str]:
    """Return the feature flags of the CPU that code is compiled for, as the Linux kernel names them; empty where there
    is no /proc/cpuinfo."""
    line = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    features = line.group(1).split() if line else []
    beyond = _BEYOND.get(march())
    return frozenset(f for f in features if beyond is None or not beyond.match(f))


@cache
def cpu_name() -> str:
    """Return the CPU's model name (for reports)."""
    line = re.search(r"^model name\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return line.group(1).strip() if line else platform.processor() or platform.machine()


@cache
def vector_bits() -> int:
    """Return the width in bits of the widest vector registers that compiled code may use."""
    features = cpu_features()
    if "avx512f" in features:
        return 512
    if features & {"avx", "avx2"}:
        return 256
    return 128


@cache
def glibc_version() -> str:
    """Return the C library's version such as ``2.36``; empty when it is not glibc."""
    name, version = platform.libc_ver()
    return version if name == "glibc" else ""


@cache
def vector_math() -> frozenset[str]:
    """Return the functions of which glibc's libmvec has a vector variant for float32 (``tanhf``, ``erff``, ...)."""
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return frozenset()
    prefix = "_ZGVnN4" if platform.machine() == "aarch64" else "_ZGVeN16"
    return frozenset(f for f in _MVEC_FUNCTIONS if hasattr(library, f"{prefix}{'vv' if f == 'powf' else 'v'}_{f}"))


@cache
def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


@cache
def caches() -> Caches:
    """Return the sizes of the first core's data caches, read from sysfs."""
    sizes = {1: 0, 2: 0, 3: 0}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and level.isdigit() and int(level) in sizes:
            sizes[int(level)] = _bytes(size)
    return Caches(sizes[1], sizes[2], sizes[3])


@cache
def torch_library_folder() -> Path | None:
    """Return the folder of torch's shared libraries without importing torch; None when torch is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "lib"
    return folder if folder.is_dir() else None


@cache
def libgomp() -> Path | None:
    """Return torch's OpenMP runtime, to which programs of clang are linked, too; None when torch brings none."""
    folder = torch_library_folder()
    places = (folder, folder.parents[1] / "torch.libs") if folder else ()
    return next((path for place in places for path in sorted(place.glob("libgomp*.so*"))), None)


@cache
def fingerprint() -> str:
    """Return a digest of everything outside the sources that changes compiled code.

    CPU, compiler, C library, and the versions of the packages that take part in making it.
    """
    return fingerprint_with(compiler_text())


def compiler_text() -> str:
    """What a fingerprint has of the compiler: its version and the arguments that it is started with."""
    own = compiler()
    return "\0".join((own.version, " ".join(own.command[1:]))) if own else "no compiler\0"


def fingerprint_with(compiler: str) -> str:
    """The fingerprint of this machine if it had the compiler of which this is the ``compiler_text``."""
    parts = [
        platform.system(),
        platform.machine(),
        cpu_name(),
        " ".join(sorted(cpu_features())),
        f"{cores()} cores, {caches()}",  # thresholds of schedules (cost/limits.py)
        glibc_version(),
        compiler,
        platform.python_version(),
        versions.text(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _cpuinfo() -> str:
    return _read(Path("/proc/cpuinfo"))


def _version_line(command: list[str]) -> str:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.splitlines()[0].strip() if answer.returncode == 0 and answer.stdout else ""


def _quiet(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", size)
    return int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)] if match else 0
