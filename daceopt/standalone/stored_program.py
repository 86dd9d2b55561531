"""``daceopt.load``: runs a model that ``python -m daceopt optimize -o`` wrote, on NumPy arrays, with NumPy alone.

Every file is checked before the library is loaded, and the library carries a seal of what describes it. That finds
damage and edits; the library itself is code that runs with the caller's rights, so load only what you trust.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from daceopt import system
from daceopt.errors import BuildError, DaceoptError
from daceopt.runtime.executable import Executable, Exports, open_library
from daceopt.runtime.manifest import Manifest
from daceopt.store import storage

FORMAT = 1
MANIFEST, CONSTANTS, CHECKSUMS = "manifest.json", "constants.npz", "checksums.json"
SEAL = "daceopt_seal"
_LARGEST_TEXT = 64 << 20
_ALIGNMENT = 64  # of the arena: its offsets are multiples of it
# Of the CPU's features, those that compilers use without being told; the others describe the machine.
_INSTRUCTIONS = re.compile(r"(s?sse|avx|fma|bmi|f16c|movbe|abm|popcnt|adx|gfni|v?aes|v?pclmul|amx|sha|asimd|sve)\w*")


def load(folder: str | os.PathLike[str]) -> StandaloneProgram:
    """The model in ``folder`` as a callable. Needs neither torch nor onnx nor dace.

    Raises BuildError, which says what is wrong: a file that is missing or was changed, another CPU, another format.
    """
    path = Path(folder)
    try:
        files = _verify(path)
        described = _describe(path, files)
        return StandaloneProgram(path, described)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        raise BuildError(
            f"{path}: expected a folder that `python -m daceopt optimize -o` wrote; {type(error).__name__}: {error}"
        ) from error


def instructions() -> list[str]:
    """The instruction sets of this CPU that compiled code may use."""
    return sorted(f for f in system.cpu_features() if _INSTRUCTIONS.fullmatch(f))


def seal(manifest: bytes, constants: str) -> str:
    """What a library says of the manifest that describes it, and of the digest of its constants."""
    return sha256(manifest + b"\0" + constants.encode()).hexdigest()


def library_name(digest: str) -> str:
    """What a library with that digest is called: the system's loader knows files by their names, so another library
    under the same name would not be loaded.
    """
    return f"program-{digest[:16]}.so"


class StandaloneProgram:
    """A model without its source: call it with arrays by position or by input name.

    One output is returned as it is, several as a list. A wrong number, dtype or shape of inputs raises DaceoptError.
    ``generator`` gives the seed of a call of a model that draws random numbers. Any number of threads may call it.
    """

    def __init__(self, folder: Path, described: Mapping[str, Any]):
        self.folder = folder
        self.generator = np.random.default_rng()
        self._inputs = [_Input(**item) for item in described["inputs"]]
        self._results = [(str(item["name"]), _dtype(item["dtype"])) for item in described["outputs"]]
        manifest = Manifest.from_json(json.dumps(described["program"]))
        self._executable = _Library(folder, manifest, described)
        self._reads = [_position(t.name) for t in manifest.inputs]
        self._writes = [_position(t.name) for t in manifest.outputs]
        self._symbols = [(_position(s.input), s.axis) for s in manifest.symbols]
        self._constants = self._executable.constants
        if sorted(self._writes) != list(range(len(self._results))):
            raise ValueError(f"the program writes the outputs {self._writes} of {len(self._results)}")

    @property
    def input_names(self) -> list[str]:
        """The model's inputs, in order."""
        return [i.name for i in self._inputs]

    @property
    def output_names(self) -> list[str]:
        """The model's outputs, in order."""
        return [name for name, _ in self._results]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        arrays = self._bind(args, kwargs)
        symbols = tuple(int(arrays[k].shape[axis]) for k, axis in self._symbols)
        sizes = self._executable.sizes(symbols)
        outputs = {k: _empty(shape, self._results[k][1]) for k, shape in zip(self._writes, sizes.shapes, strict=True)}
        arena = _empty((sizes.arena,), np.dtype(np.uint8))
        seed = self.generator.integers(np.iinfo(np.int64).max, size=1, dtype=np.int64)
        passed = [*(arrays[k] for k in self._reads), *self._constants, *outputs.values()]
        pointers = [a.ctypes.data for a in passed]
        self._executable.run([*pointers, 0, arena.ctypes.data, seed.ctypes.data], symbols)
        results = [outputs[k] for k in range(len(outputs))]
        return results[0] if len(results) == 1 else results

    def __repr__(self) -> str:
        return f"<daceopt program {self.folder}: {', '.join(map(str, self._inputs))} -> {', '.join(self.output_names)}>"

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
        rest = self.input_names[len(args) :]
        if len(args) > len(self._inputs) or set(kwargs) != set(rest):
            raise DaceoptError(
                f"expected the inputs {self.input_names}, by position or by name; "
                f"got {len(args)} by position and {sorted(kwargs)}"
            )
        named: dict[str, int] = {}
        values = [*args, *(kwargs[name] for name in rest)]
        return [i.array(value, named) for i, value in zip(self._inputs, values, strict=True)]


class _Input:
    """Name, type and shape of an input: numbers, and names of sizes that a call decides."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int | str]):
        self.name, self.dtype, self.shape = str(name), _dtype(dtype), list(shape)

    def array(self, value: Any, named: dict[str, int]) -> np.ndarray:
        """``value`` as contiguous memory; ``named`` has the sizes of the dimension names seen so far."""
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DaceoptError(f"expected the input {self}, got {type(value).__name__}: {error}") from error
        if array.dtype != self.dtype or array.ndim != len(self.shape):
            raise DaceoptError(f"expected the input {self}, got {array.dtype} of shape {list(array.shape)}")
        for axis, (dimension, size) in enumerate(zip(self.shape, array.shape, strict=True)):
            expected_size = named.setdefault(dimension, size) if isinstance(dimension, str) else dimension
            if expected_size != size:
                expected = f"{dimension} = {expected_size}" if isinstance(dimension, str) else expected_size
                raise DaceoptError(f"input {self.name!r}, axis {axis}: expected {expected}, got {size}")
        return np.require(array, requirements=("C", "A"))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class _Library(Executable):
    """The library of a folder, loaded after what was put beside it."""

    def __init__(self, folder: Path, manifest: Manifest, described: Mapping[str, Any]):
        if manifest.saves:
            raise ValueError("its program needs more than its folder")
        self.entry = folder
        self._described = described
        self._name = str(described["library"])
        self._prepare(manifest)
        _ = self._functions

    @cached_property
    def _functions(self) -> Exports:
        beside = [str((self.entry / name).resolve()) for name in self._described["libraries"] if not _is_loaded(name)]
        library = open_library((self.entry / self._name).resolve(), beside)
        function = getattr(library, SEAL, None)
        if function is None:
            raise ValueError(f"{self._name} has no seal")
        function.argtypes, function.restype = (), ctypes.c_char_p
        if function() != self._described["seal"].encode():
            raise ValueError(f"{self._name} belongs to another {MANIFEST} or other constants")
        functions = Exports(library)
        functions.check(self.manifest)
        return functions

    @cached_property
    def constants(self) -> tuple[np.ndarray, ...]:
        if not self.manifest.constants:
            return ()
        with np.load(self.entry / CONSTANTS, allow_pickle=False) as stored:
            return tuple(np.ascontiguousarray(stored[tensor.name]) for tensor in self.manifest.constants)


# -------------------------------------------------------------------- checks before anything is used


def _verify(folder: Path) -> dict[str, str]:
    """The digest of each file that the folder lists, all of them as they were written."""
    if not folder.is_dir():
        raise ValueError("it is no folder" if folder.exists() else "there is no such folder")
    listed = _json(folder / CHECKSUMS)
    _check_format(listed, CHECKSUMS)
    files = {str(name): (str(info["sha256"]), int(info["bytes"])) for name, info in listed["files"].items()}
    if MANIFEST not in files:
        raise ValueError(f"{CHECKSUMS} does not list {MANIFEST}")
    for name, (digest, size) in files.items():
        if name != Path(name).name or name in ("", ".", ".."):
            raise ValueError(f"{CHECKSUMS} lists {name!r}, which is no name of a file in the folder")
        _check_file(folder / name, digest, size)
    return {name: digest for name, (digest, _) in files.items()}


def _check_file(path: Path, digest: str, size: int) -> None:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path.name} is no plain file")
    if status.st_size != size:
        raise ValueError(f"{path.name} has {status.st_size} bytes, {size} were written")
    if storage.file_digest(path) != digest:
        raise ValueError(f"{path.name} has changed since it was written")


def _describe(folder: Path, files: Mapping[str, str]) -> dict[str, Any]:
    """The manifest, for this machine; with the name of the library and the seal that it must show."""
    library = next((name for name, digest in files.items() if name == library_name(digest)), None)
    if library is None:
        raise ValueError(f"{CHECKSUMS} does not list a library {library_name('<digest>')}")
    manifest = _json(folder / MANIFEST)
    _check_format(manifest, MANIFEST)
    for name in manifest["libraries"]:
        if name not in files:
            raise ValueError(f"{MANIFEST} names the library {name!r}, which {CHECKSUMS} does not list")
    _check_machine(manifest)
    _check_elf(folder / library)
    mark = seal((folder / MANIFEST).read_bytes(), files.get(CONSTANTS, ""))
    return {**manifest, "library": library, "seal": mark}


def _check_format(content: Any, name: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{name} has another format than {FORMAT}")


def _check_machine(manifest: Mapping[str, Any]) -> None:
    """Machine code for other instructions would end the process."""
    here = os.uname().machine
    if manifest["machine"] != here:
        raise ValueError(f"it was compiled for {manifest['machine']}, this machine is {here}")
    lacking = sorted(set(manifest["instructions"]) - set(system.cpu_features()))
    if lacking:
        raise ValueError(f"it was compiled for a CPU with {', '.join(lacking)}, which this one lacks; compile it here")


def _check_elf(path: Path) -> None:
    """The loader trusts the headers: a library that is shorter than they say would end the process."""
    with path.open("rb") as stream:
        header = stream.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path.name} is no shared library")
    start = int.from_bytes(header[40:48], "little")  # of the section headers, with which the file ends
    size, count = (int.from_bytes(header[k : k + 2], "little") for k in (58, 60))
    if path.stat().st_size < start + size * count:
        raise ValueError(f"{path.name} is not complete")


def _json(path: Path) -> Any:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_TEXT:
        raise ValueError(f"{path.name} is no plain file of at most {_LARGEST_TEXT >> 20} MiB")
    return json.loads(path.read_text(encoding="utf-8"))


# -------------------------------------------------------------------- small things


def _is_loaded(library: str) -> bool:
    """Is a library of that name in the process? A second OpenMP runtime beside PyTorch's would fight over the cores."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return True
    except OSError:
        return False


def _position(role: str) -> int:
    return int(role.partition(":")[2])


def _dtype(name: str) -> np.dtype[Any]:
    """A type of NumPy, or of ``ml_dtypes`` where NumPy lacks it."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # numpy learns bfloat16 and the types below 16 bits

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"its element type {name} is one of the package ml_dtypes: install it ({error})") from error


def _empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Uninitialised memory that begins where a cache line does."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
