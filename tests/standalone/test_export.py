"""A model as a folder: the same numbers without torch, onnx and dace; what was damaged or edited is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import daceopt
from daceopt.errors import BuildError, DaceoptError, FallbackWarning, Unsupported
from daceopt.standalone import export, stored_program
from daceopt.store import storage
from tests.numerics import assert_within_rounding
from tests.onnx_models import FLOAT, INT64, detector, proto

RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((6, 5)).astype(np.float32)
IMAGE = RANDOM.standard_normal((2, 3, 8, 8)).astype(np.float32)
FILTER = RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)


def dense() -> Any:
    """softmax(x @ w) and x + 1, with a batch of any size."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    nodes.append(helper.make_node("Add", ["x", "one"], ["z"]))
    values = [("x", FLOAT, ["batch", 6])], [("y", FLOAT, ["batch", 5]), ("z", FLOAT, ["batch", 6])]
    return proto(nodes, *values, constants={"w": W, "one": np.float32([1])})


def one(op: str, inputs: list[tuple[Any, ...]], output: tuple[Any, ...], constants: Any = None, **attributes: Any):
    names = [v[0] for v in inputs] + list(constants or {})
    return proto([helper.make_node(op, names, [output[0]], **attributes)], inputs, [output], constants=constants)


def written(folder: Path, model: Any, **options: Any) -> Path:
    export.write(daceopt.from_onnx(model, **options), folder)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("exported") / "model", dense())


def library(folder: Path) -> Path:
    (found,) = folder.glob("program-*.so")
    return found


def softmax64(x: np.ndarray) -> np.ndarray:
    h = x.astype(np.float64) @ W.astype(np.float64)
    e = np.exp(h - h.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("batch", [0, 1, 3, 700])
def test_results_are_right_for_every_size(exported: Path, batch: int) -> None:
    run = daceopt.load(exported)
    x = RANDOM.standard_normal((batch, 6)).astype(np.float32)
    y, z = run(x)
    assert_within_rounding(y, softmax64(x))
    np.testing.assert_array_equal(z, x + np.float32(1))
    assert (run.input_names, run.output_names) == (["x"], ["y", "z"])
    np.testing.assert_array_equal(run(x=np.asfortranarray(x))[0], y)


ALONE = """
import sys
for name in ("torch", "onnx", "dace", "sympy", "onnxruntime", "onnxscript", "networkx", "ml_dtypes"):
    sys.modules[name] = None
import numpy as np, daceopt
x = np.load(sys.argv[2])
np.save(sys.argv[3], daceopt.load(sys.argv[1])(x)[0])
maps = open("/proc/self/maps").read()
assert sys.argv[1] in maps and "site-packages/torch" not in maps, maps
"""


def test_it_runs_without_the_heavy_packages_and_wherever_it_was_moved(exported: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(exported, tmp_path / "elsewhere"))
    x = RANDOM.standard_normal((4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", ALONE, str(moved), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    environment = {**os.environ, "DACEOPT_CACHE_DIR": str(tmp_path / "none"), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert_within_rounding(np.load(tmp_path / "y.npy"), softmax64(x))
    assert not (tmp_path / "none").exists()


def test_convolutions_bring_their_library(tmp_path: Path) -> None:
    conv = one("Conv", [("x", FLOAT, [2, 3, 8, 8])], ("y", FLOAT, [2, 4, 6, 6]), {"w": FILTER})
    folder = written(tmp_path / "model", conv)
    assert (folder / "libdnnl.so.3").is_file()
    assert "libdnnl.so.3: oneDNN, Apache License 2.0\n" in (folder / "README.txt").read_text()
    exact = np.zeros((2, 4, 6, 6))
    for r in range(3):
        for c in range(3):
            exact += np.einsum("nchw,oc->nohw", IMAGE[:, :, r : r + 6, c : c + 6], FILTER[:, :, r, c].astype(float))
    assert_within_rounding(daceopt.load(folder)(IMAGE), exact)
    assert b"site-packages" not in (library(folder)).read_bytes()


def test_random_numbers_follow_the_generator(tmp_path: Path) -> None:
    run = daceopt.load(written(tmp_path / "model", one("RandomUniformLike", [("x", FLOAT, [64])], ("y", FLOAT, [64]))))
    x, found = np.zeros(64, np.float32), []
    for seed in (1, 1, 2):
        run.generator = np.random.default_rng(seed)
        found.append(run(x))
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any() and 0 <= found[0].min() < found[0].max() < 1


# -------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"expected the inputs \['x'\], by position or by name; got 0 by position and \[\]"),
        ((1, 2), {}, "got 2 by position"),
        ((), {"w": 1}, r"got 0 by position and \['w'\]"),
        ((np.ones((2, 6)),), {}, r"expected the input x: float32\[batch, 6\], got float64 of shape \[2, 6\]"),
        ((np.ones((2, 6), ">f4"),), {}, "got >f4"),
        ((np.ones(6, np.float32),), {}, r"got float32 of shape \[6\]"),
        ((np.ones((2, 5), np.float32),), {}, "input 'x', axis 1: expected 6, got 5"),
        (("text",), {}, "got <U4"),
        (([[1.0], [1.0, 2.0]],), {}, "x"),
    ],
)
def test_wrong_arguments_say_what_was_expected(exported: Path, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        daceopt.load(exported)(*args, **kwargs)


def test_an_input_may_have_the_name_of_a_parameter_of_ours(tmp_path: Path) -> None:
    model, x = one("Neg", [("self", FLOAT, [3])], ("y", FLOAT, [3])), np.arange(3, dtype=np.float32)
    for run in (daceopt.from_onnx(model), daceopt.load(written(tmp_path / "model", model))):
        np.testing.assert_array_equal(run(self=x), -x)


def test_sizes_of_one_name_agree(tmp_path: Path) -> None:
    values = [("a", FLOAT, ["n"]), ("b", FLOAT, ["n"])]
    run = daceopt.load(written(tmp_path / "model", one("Add", values, ("y", FLOAT, ["n"]))))
    a, b = np.ones(3, np.float32), np.ones(4, np.float32)
    np.testing.assert_array_equal(run(b, b), b + b)
    with pytest.raises(DaceoptError, match="input 'b', axis 0: expected n = 3, got 4"):
        run(a, b)


# -------------------------------------------------------------------- what cannot leave the process


def test_what_onnxruntime_does_is_refused(tmp_path: Path) -> None:
    with pytest.warns(FallbackWarning):
        model = daceopt.from_onnx(detector(batch=1))
    with pytest.raises(Unsupported, match="ONNX Runtime does a part of its work: NonMaxSuppression"):
        export.write(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_library_calls_that_need_torch_are_refused(tmp_path: Path) -> None:
    shapes = [("x", helper.TensorProto.DOUBLE, [2, 3, 8, 8])], ("y", helper.TensorProto.DOUBLE, [2, 4, 6, 6])
    model = daceopt.from_onnx(one("Conv", *shapes, {"w": FILTER.astype(np.float64)}))
    with pytest.raises(Unsupported, match="aten: it works only in a process that has PyTorch"):
        export.write(model, tmp_path / "model")


def test_libraries_that_may_not_be_passed_on_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"it links libmine.so, which may not be passed on"):
        export._check_licenses([Path("libgomp.so.1"), Path("libmine.so")])


def test_a_program_for_one_value_of_an_input_is_refused(tmp_path: Path) -> None:
    model = daceopt.from_onnx(
        one("Reshape", [("x", FLOAT, [6]), ("shape", INT64, [2])], ("y", FLOAT, [None, None])), fallback=False
    )
    model.prepare(np.ones(6, np.float32), np.array([2, 3]))
    with pytest.raises(Unsupported, match=r"for one value of \['shape'\]"):
        export.write(model, tmp_path / "model")


# -------------------------------------------------------------------- damaged and edited folders


def sealed_again(folder: Path) -> None:
    """What an editor who knows of the checksums would do."""
    (folder / "checksums.json").unlink()
    (folder / "README.txt").unlink()
    library(folder).rename(folder / stored_program.library_name(storage.file_digest(library(folder))))
    export._write_checksums(folder)


def edited(folder: Path, change: Callable[[Any], Any], name: str = "manifest.json") -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(change(content)))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def linked(path: Path) -> None:
    target = path.rename(path.parent.parent / path.name)
    path.symlink_to(target)


def checksums(**files: Any) -> Callable[[Any], Any]:
    return lambda found: {**found, "files": {**found["files"], **files}}


DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no folder", lambda f: shutil.rmtree(f), "there is no such folder"),
    ("a file", lambda f: (shutil.rmtree(f), f.write_text("")), "it is no folder"),
    ("empty", lambda f: (shutil.rmtree(f), f.mkdir()), "checksums.json"),
    ("no library", lambda f: (library(f)).unlink(), "program-"),
    ("short library", lambda f: truncated(library(f)), r"program-\w+.so has .* bytes, .* were written"),
    ("short constants", lambda f: truncated(f / "constants.npz"), "constants.npz has"),
    ("edited manifest", lambda f: edited(f, lambda m: {**m, "inputs": []}), "manifest.json has"),
    (
        "flipped byte",
        lambda f: (f / "constants.npz").write_bytes((f / "constants.npz").read_bytes()[:-1] + b"?"),
        "constants.npz has changed since it was written",
    ),
    ("linked library", lambda f: linked(library(f)), r"program-\w+.so is no plain file"),
    ("checksums are no JSON", lambda f: (f / "checksums.json").write_text("{"), "JSONDecodeError"),
    ("deep JSON", lambda f: (f / "checksums.json").write_text("[" * 100_000), "RecursionError"),
    ("no object", lambda f: (f / "checksums.json").write_text("[]"), "another format"),
    ("other format", lambda f: edited(f, lambda c: {**c, "format": 9}, "checksums.json"), "another format than 1"),
    ("no files", lambda f: edited(f, lambda c: {**c, "files": {}}, "checksums.json"), "does not list"),
    (
        "path escape",
        lambda f: edited(f, checksums(**{"../x": {"sha256": "", "bytes": 0}}), "checksums.json"),
        r"'../x', which is no name of a file in the folder",
    ),
    (
        "absolute path",
        lambda f: edited(f, checksums(**{"/etc/passwd": {"sha256": "", "bytes": 0}}), "checksums.json"),
        "no name of a file in the folder",
    ),
    ("odd types", lambda f: edited(f, checksums(x={"sha256": 1, "bytes": "?"}), "checksums.json"), "ValueError"),
]


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damage_is_seen_before_anything_is_loaded(
    exported: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    damage(folder)
    monkeypatch.setattr(stored_program, "open_library", lambda *args: pytest.fail("a library was loaded"))
    with pytest.raises(BuildError, match=message) as caught:
        daceopt.load(folder)
    assert str(folder) in str(caught.value) and "daceopt optimize -o" in str(caught.value)


def wider(manifest: Any) -> Any:
    manifest["inputs"][0]["shape"][1] = 4
    return manifest


EDITS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("sizes", lambda f: edited(f, wider), "belongs to another manifest.json"),
    ("constants", lambda f: np.savez(f / "constants.npz", **{"constant:0": np.ones(1)}), "or other constants"),
    ("no constants", lambda f: (f / "constants.npz").unlink(), "or other constants"),
    ("short library", lambda f: truncated(library(f)), "is not complete"),
    ("no library", lambda f: (library(f)).write_text("text"), "is no shared library"),
    ("other machine", lambda f: edited(f, lambda m: {**m, "machine": "pdp11"}), "compiled for pdp11"),
    (
        "other CPU",
        lambda f: edited(f, lambda m: {**m, "instructions": [*m["instructions"], "avx4096"]}),
        "a CPU with avx4096, which this one lacks; compile it here",
    ),
    ("foreign library", lambda f: edited(f, lambda m: {**m, "libraries": ["../evil.so"]}), "names the library"),
    ("no field", lambda f: edited(f, lambda m: {"format": 1}), "KeyError"),
]


@pytest.mark.parametrize(("edit", "message"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS])
def test_edits_with_new_checksums_are_refused_too(
    exported: Path, tmp_path: Path, edit: Callable[[Path], Any], message: str
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    edit(folder)
    sealed_again(folder)
    with pytest.raises(BuildError, match=message):
        daceopt.load(folder)


def test_a_library_that_is_not_ours_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "model"))
    shutil.copyfile(folder / "libgomp.so.1", library(folder))
    sealed_again(folder)
    with pytest.raises(BuildError, match="has no seal"):
        daceopt.load(folder)


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("model"), one("Relu", [("x", FLOAT, [3])], ("y", FLOAT, [3])))
    np.testing.assert_array_equal(daceopt.load("model")(np.float32([-1, 0, 2])), np.float32([0, 0, 2]))


def test_writing_again_replaces_the_model(tmp_path: Path) -> None:
    folder = written(tmp_path / "model", dense())
    first = daceopt.load(folder)
    written(folder, one("Relu", [("x", FLOAT, [3])], ("y", FLOAT, [3])))
    x = np.float32([-1, 0, 2])
    np.testing.assert_array_equal(daceopt.load(folder)(x), np.float32([0, 0, 2]))
    assert first(np.ones((2, 6), np.float32))[0].shape == (2, 5)
