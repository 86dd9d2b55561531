"""The cache as one file, for machines that are alike: those of a fleet, or of the jobs of a build."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from daceopt import system
from daceopt.errors import DaceoptError
from daceopt.store import sealed
from daceopt.store.cache import Cache

_ABOUT, _FORMAT, _MOST_ABOUT = "about.json", 1, 1 << 16
_FILE = re.compile(r"([a-z][a-z0-9_-]{0,40})/([0-9a-f]{64})/([A-Za-z0-9_][A-Za-z0-9_.+-]{0,200})")
_UNREADABLE = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError)
_MISSHAPED = (ValueError, KeyError, TypeError, AttributeError)


class Additions(NamedTuple):
    """How many entries were added, were there already, and were left out because they are damaged."""

    added: int
    present: int
    damaged: int


@dataclass(frozen=True, order=True)
class _Packed:
    kind: str
    key: str
    name: str
    path: str
    size: int


class _Damaged(Exception):
    pass


def write(cache: Cache, path: Path) -> int:
    """Write all sound entries of the cache to ``path``, a zip file; return how many. What was there stays until the
    new file is complete. Raises DaceoptError where it cannot be written."""
    count, unfinished = 0, path.with_name(f".{path.name}.{os.getpid()}")
    about = {"format": _FORMAT, "machine": _machine(), "fingerprint": system.fingerprint()}
    about["compiler"] = system.compiler_text()
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED, compresslevel=4) as archive:
            archive.writestr(_ABOUT, json.dumps(about))
            for entry in cache.entries():
                if sealed.damage(entry) is not None:
                    continue
                count += 1
                for name in (*sorted(sealed.names(entry)), sealed.ENTRY):
                    archive.write(entry / name, f"{entry.parent.parent.name}/{entry.name}/{name}")
        unfinished.replace(path)
    except OSError as error:
        raise DaceoptError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def read(cache: Cache, path: Path) -> Additions:
    """Add the entries of a file that :func:`write` has written. Each is compared with the digests that it was sealed
    with, and lands in the cache complete or not at all.

    Raises DaceoptError for another kind of file, one that is not whole, one that holds more than the cache may, and one
    of a machine whose programs would not be found here: their keys name the CPU, the compiler and all versions. A
    machine without a compiler takes those of any.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check_about(archive, path)
            return _add(cache, archive, _files(archive, path, cache.limit))
    except OSError as error:
        raise DaceoptError(f"{path} cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise DaceoptError(f"{path} is no whole file of `daceopt cache export`: {error}") from error


def _check_about(archive: zipfile.ZipFile, path: Path) -> None:
    try:
        if archive.getinfo(_ABOUT).file_size > _MOST_ABOUT:
            raise ValueError
        about = json.loads(archive.read(_ABOUT))
        form, fingerprint, machine = about["format"], about["fingerprint"], str(about["machine"])[:200]
        compiler = str(about["compiler"])
    except (*_MISSHAPED, RecursionError) as error:
        raise DaceoptError(f"{path} is no file of `daceopt cache export`: it does not say of which machine") from error
    if form != _FORMAT:
        raise DaceoptError(f"{path} has format {str(form)[:40]}, expected {_FORMAT}: export it with this daceopt")
    if fingerprint != (system.fingerprint() if system.compiler() else system.fingerprint_with(compiler)):
        raise DaceoptError(
            f"{path} is of another machine or installation ({machine!r}; this is {_machine()!r}), whose programs would "
            "not be found here: export one where CPU, compiler, Python and packages are the same"
        )


def _files(archive: zipfile.ZipFile, path: Path, most: int) -> list[_Packed]:
    """In the order of their entries."""
    files = []
    for info in archive.infolist():
        if info.filename == _ABOUT:
            continue
        parts = _FILE.fullmatch(info.filename)
        if parts is None:
            raise DaceoptError(f"{path} has a file {info.filename[:100]!r}, which is of no entry; nothing was added")
        files.append(_Packed(parts[1], parts[2], parts[3], info.filename, info.file_size))
    if len({file.path for file in files}) < len(files):
        raise DaceoptError(f"{path} has a file twice; nothing was added")
    if sum(file.size for file in files) > most:
        raise DaceoptError(f"{path} holds more than the {most} bytes that the cache keeps (DACEOPT_CACHE_SIZE)")
    return sorted(files)


def _add(cache: Cache, archive: zipfile.ZipFile, files: list[_Packed]) -> Additions:
    added = present = damaged = 0
    for (kind, key), group in groupby(files, key=lambda file: (file.kind, file.key)):
        if cache.get(kind, key) is not None:
            present += 1
            continue
        try:
            cache.put(kind, key, partial(_unpack, archive, list(group)))
            added += 1
        except (_Damaged, *_UNREADABLE):
            damaged += 1
    return Additions(added, present, damaged)


def _unpack(archive: zipfile.ZipFile, files: list[_Packed], folder: Path) -> None:
    for file in files:
        descriptor = os.open(folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with archive.open(file.path) as stream, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(stream, target)
    if sealed.damage(folder) is not None or {*sealed.names(folder), sealed.ENTRY} != {file.name for file in files}:
        raise _Damaged
    (folder / sealed.ENTRY).unlink()  # the cache seals what it keeps


def _machine() -> str:
    compiler = system.compiler()
    return f"{system.cpu_name()}, {system.cores()} cores, {compiler.version if compiler else 'no compiler'}"
