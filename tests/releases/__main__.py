"""``python -m tests.releases [RELEASE ...]``: a share of the tests with other releases of PyTorch.

Each stands in a folder of its own and is installed there once, with the libraries that its CUDA build is linked to; a
GPU is not needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from daceopt.torch_internals.release import TESTED

ROOT = Path(__file__).parents[2]

TESTS = (
    "tests/torch_internals",
    "tests/releases",
    "tests/capture/torch/test_refusals.py",
    "tests/capture/torch/test_hooks.py",
    "tests/capture/torch/test_state_values.py",
    "tests/modules/test_contract_cache.py",
    "tests/modules/test_contract_sizes.py",
    "tests/modules/test_breaks.py",
    "tests/modules/test_data_decides.py",
    "tests/modules/test_fast_path.py",
    "tests/modules/test_frames.py",
    "tests/modules/test_semantics_second_order.py",
    "tests/modules/test_semantics_state.py",
    "tests/modules/test_semantics_training.py",
    "tests/programs",
)
"""Names, what is captured, what optimized modules promise, and networks."""

OWN = importlib.metadata.version("torch").split("+")[0]
"""The release of this environment, which ``make test`` tests."""

_LIBRARIES = re.compile(r"(?:nvidia-|cuda-toolkit)[^;]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where all releases pass."""
    options = _parser().parse_args(arguments)
    outcomes = {release: test(release, options.folder, options.tests or TESTS) for release in options.releases}
    for release, outcome in outcomes.items():
        print(f"PyTorch {release}: {outcome}")
    return any(re.search("failed|error|installed", outcome) is not None for outcome in outcomes.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    others = [release for release in TESTED if release != OWN]
    parser.add_argument("releases", nargs="*", default=others, help=f"default: {', '.join(others)}")
    folder = os.environ.get("TORCH_RELEASES") or ROOT.parent / "torch-releases"
    parser.add_argument("--folder", type=Path, default=Path(folder), help=f"where releases stand (default: {folder})")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="in place of the usual ones")
    return parser


def test(release: str, folder: Path, tests: Sequence[str]) -> str:
    """The last line of pytest's; or that the release could not be installed."""
    own = (folder / release).absolute()
    if not (own / ".ready").exists():
        try:
            install(release, own)
        except subprocess.CalledProcessError as error:
            return f"could not be installed into {own}: pip exited with {error.returncode}"
    print(f"== PyTorch {release}", flush=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(own), os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    line = ""
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
    return line.strip() if running.returncode in (0, 1) else f"error: pytest exited with {running.returncode}"


def install(release: str, folder: Path) -> None:
    """PyTorch without its Python packages, which are those of this environment. About 3 GB. Raises CalledProcessError
    where pip fails."""
    _pip(folder, "--no-deps", f"torch=={release}")
    if libraries := list(_libraries(folder)):
        _pip(folder, *libraries)
    (folder / ".ready").touch()


def _libraries(folder: Path) -> Iterator[str]:
    """The packages with the shared libraries that the PyTorch in a folder is linked to."""
    (torch,) = importlib.metadata.Distribution.discover(name="torch", path=[str(folder)])
    for requirement in torch.requires or ():
        if known := _LIBRARIES.match(requirement):
            yield known[0].replace(" ", "")


def _pip(folder: Path, *packages: str) -> None:
    """Constraints that a machine sets for other environments have no say."""
    options = ("--disable-pip-version-check", "--no-compile", "--upgrade", "--target", str(folder))
    environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *packages], check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
