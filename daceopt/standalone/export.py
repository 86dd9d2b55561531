"""Writes a compiled model as a folder that ``daceopt.load`` runs where neither PyTorch nor ONNX nor DaCe is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daceopt import system
from daceopt._version import __version__
from daceopt.codegen.compiler import CompileJob, Flags, compile_objects, link
from daceopt.errors import Unsupported
from daceopt.standalone import stored_program
from daceopt.standalone.stored_program import CHECKSUMS, CONSTANTS, FORMAT, MANIFEST, SEAL
from daceopt.store import storage

if TYPE_CHECKING:
    from typing import TypeAlias

    from daceopt.codegen.build import GeneratedProgram
    from daceopt.ir.graph.graph import Graph
    from daceopt.libs import Requirements
    from daceopt.models.onnx_model import OnnxModel
    from daceopt.modules.frozen import FrozenProgram

    Compiled: TypeAlias = OnnxModel | FrozenProgram

OPENMP = "libgomp.so.1"
_RUN_PATH = "-Wl,-rpath,"
_README = """\
{title}

compiled by daceopt {version} for {machine} with {cpu}.

    import daceopt
    run = daceopt.load("{folder}")
    results = run({names})

Needs Python with numpy and daceopt; no torch, onnx or dace. Load it only if you trust where it comes from: it is code.

inputs   {inputs}
outputs  {outputs}
{libraries}"""
# What may be passed on, and under which terms; a library that is not named here is not bundled.
_LICENSES = {
    "libgomp.so.1": "GNU OpenMP runtime, GPL 3 with the GCC Runtime Library Exception",
    "libdnnl.so.3": "oneDNN, Apache License 2.0",
}


def write(model: Compiled, folder: str | os.PathLike[str], title: str = "an ONNX model") -> None:
    """Compile the program of ``model`` once more, with nothing in it that needs this process, and write it.

    Raises Unsupported with the reason for what cannot leave it, OSError where ``folder`` cannot be written.
    """
    from daceopt.codegen.build import GeneratedProgram

    _check_whole(model)
    graphs, target = model.pair.graphs, Path(folder).absolute()  # the linker runs elsewhere
    generated = GeneratedProgram(*graphs.directions()[0], _implement, 0)
    flags = reduce(Flags.__add__, (job.flags for job in generated.jobs), Flags())
    libraries = [*_openmp(), *_linked_libraries(flags)]
    _check_licenses(libraries)
    described = _describe(model, generated, libraries)
    target.mkdir(parents=True, exist_ok=True)
    with storage.work_folder(target) as work:
        _fill(work, generated, described, flags)
        for library in libraries:
            shutil.copyfile(library, work / library.name)
        _write_checksums(work)
        (work / "README.txt").write_text(_readme(described, title, target), encoding="utf-8")
        _publish(work, target)


def _fill(work: Path, generated: GeneratedProgram, described: dict[str, Any], flags: Flags) -> None:
    """The manifest, the constants, and the library, which is sealed with both."""
    text = json.dumps(described, indent=1).encode()
    (work / MANIFEST).write_bytes(text)
    seal = stored_program.seal(text, _write_constants(work, generated))
    objects = compile_objects([*generated.jobs, _seal_job(seal)])
    library = work / "program.so"
    link(list(dict.fromkeys(objects)), library, _beside(flags))
    library.rename(work / stored_program.library_name(storage.file_digest(library)))


def _check_whole(model: Compiled) -> None:
    """Refuse what is more than one program, or less than the model."""
    pair = model.pair
    if pair.source.model is None:
        return  # a frozen module is one program
    if pair.report["fallbacks"]:
        listed = ", ".join(f"{name} ({why})" for name, why in pair.report["fallbacks"].items())
        raise Unsupported(f"it cannot be exported: ONNX Runtime does a part of its work: {listed}")
    stored = {t.name for t in pair.model.graph.initializer}
    fed_inputs = [v.name for v in pair.model.graph.input if v.name not in stored]
    if fed_inputs != model.input_names:
        fixed = sorted(set(model.input_names) - set(fed_inputs))
        raise Unsupported(f"it cannot be exported: a program is for one value of {fixed}, on which shapes depend")


def _check_licenses(libraries: Sequence[Path]) -> None:
    if unknown := [library.name for library in libraries if library.name not in _LICENSES]:
        raise Unsupported(f"it cannot be exported: it links {', '.join(unknown)}, which may not be passed on as it is")


def _implement(graph: Graph) -> Requirements:
    """Library calls that work outside of this process, or Unsupported."""
    from daceopt import libs

    with libs.portable():
        return libs.implement(graph)


def _describe(model: Compiled, generated: GeneratedProgram, libraries: list[Path]) -> dict[str, Any]:
    """The manifest: what a call takes and gives, and on which machine."""
    return {
        "format": FORMAT,
        "daceopt": __version__,
        "machine": os.uname().machine,
        "instructions": stored_program.instructions(),
        "libraries": [library.name for library in libraries],
        "inputs": _inputs(model, generated),
        "outputs": _outputs(model, generated),
        "program": json.loads(generated.manifest.to_json()),
    }


def _inputs(model: Compiled, generated: GeneratedProgram) -> list[dict[str, Any]]:
    arrays = {role: array for array, role in generated.roles.items()}
    named = _size_names(model, generated)
    entries = []
    for k, name in enumerate(model.input_names):
        array = arrays[f"input:{k}"]
        sizes = [n if isinstance(n, int) else str(n) for n in generated.graph.shape(array)]
        if {n for n in sizes if isinstance(n, str)} - named.keys():
            raise Unsupported(f"it cannot be exported: input {name!r} has the shape {sizes}, expected plain sizes")
        shape = [n if isinstance(n, int) else named[n] for n in sizes]
        entries.append({"name": name, "dtype": _dtype(generated, array), "shape": shape})
    return entries


def _size_names(model: Compiled, generated: GeneratedProgram) -> dict[str, str]:
    """What the model calls the sizes that a call decides, by symbol; the symbol where it has no name for it."""
    if not generated.manifest.symbols:
        return {}
    inputs = {v.name: v for v in model.pair.model.graph.input}
    names = {}
    for symbol in generated.manifest.symbols:
        position = int(symbol.input.partition(":")[2])
        dims = inputs[model.input_names[position]].type.tensor_type.shape.dim
        names[symbol.name] = dims[symbol.axis].dim_param or symbol.name
    return names


def _outputs(model: Compiled, generated: GeneratedProgram) -> list[dict[str, Any]]:
    types = {t.name: t.dtype for t in generated.manifest.outputs}
    return [{"name": name, "dtype": types[f"output:{k}"]} for k, name in enumerate(model.output_names)]


def _dtype(generated: GeneratedProgram, array: str) -> str:
    from daceopt.ir.scalar import types

    return str(types.to_numpy(generated.graph.dtype(array)).name)


# -------------------------------------------------------------------- files


def _openmp() -> list[Path]:
    """The OpenMP runtime that programs are linked with, where PyTorch brought one."""
    folder = system.torch_library_folder()
    return [folder / OPENMP] if folder is not None and (folder / OPENMP).is_file() else []


def _linked_libraries(flags: Flags) -> list[Path]:
    """The shared libraries among the link arguments."""
    return [Path(argument) for argument in flags.link if argument.startswith("/") and ".so" in argument]


def _beside(flags: Flags) -> Flags:
    """The same libraries, looked for in the folder of the program instead of where they were found."""
    arguments = tuple(argument for argument in flags.link if not argument.startswith(_RUN_PATH))
    return Flags(link=(*arguments, f"{_RUN_PATH}$ORIGIN"))


def _seal_job(text: str) -> CompileJob:
    exported = 'extern "C" __attribute__((visibility("default")))'
    return CompileJob(f'{exported} const char* {SEAL}() {{ return "{text}"; }}\n', "frame", label="seal")


def _write_constants(folder: Path, generated: GeneratedProgram) -> str:
    """Write them and return the file's digest; nothing where there are none."""
    if not generated.manifest.constants:
        return ""
    np.savez(folder / CONSTANTS, **generated.constants)
    return storage.file_digest(folder / CONSTANTS)


def _write_checksums(folder: Path) -> None:
    files = {
        path.name: {"sha256": storage.file_digest(path), "bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
    }
    (folder / CHECKSUMS).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1), encoding="utf-8")


def _publish(work: Path, folder: Path) -> None:
    """Move the files to their place, the one that makes it whole last; what another model left goes."""
    (folder / CHECKSUMS).unlink(missing_ok=True)
    for path in (*folder.glob("program-*.so"), folder / CONSTANTS):
        path.unlink(missing_ok=True)
    for path in sorted(work.iterdir(), key=lambda p: p.name == CHECKSUMS):
        path.chmod(0o644)
        path.replace(folder / path.name)


def _readme(described: dict[str, Any], title: str, folder: Path) -> str:
    inputs = [f"{i['name']}: {i['dtype']}{i['shape']}" for i in described["inputs"]]
    return _README.format(
        title=title,
        version=__version__,
        machine=described["machine"],
        cpu=system.cpu_name(),
        folder=folder.name,
        names=", ".join(i["name"] for i in described["inputs"]),
        inputs=", ".join(inputs) or "none",
        outputs=", ".join(f"{o['name']}: {o['dtype']}" for o in described["outputs"]),
        libraries="".join(f"\n{name}: {_LICENSES[name]}" for name in described["libraries"]) + "\n",
    )
