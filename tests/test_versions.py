"""Versions that daceopt does not run with are said in one line, with what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from daceopt import versions
from daceopt.commands import doctor
from daceopt.errors import InstallationError

ROOT = Path(__file__).resolve().parents[1]
UNFIT = [
    ("python", "3.14.0", "use Python 3.10 to 3.13"),
    ("python", "3.9.18", "use Python 3.10 to 3.13"),
    ("numpy", "1.25.2", "pip install 'numpy>=1.26,<3'"),
    ("numpy", "3.0.0", "pip install 'numpy>=1.26,<3'"),
    ("dace", "0.16.1", "pip install --no-deps --ignore-requires-python dace==1.0.2"),
    ("dace", "absent", "pip install --no-deps --ignore-requires-python dace==1.0.2"),
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions that are said to be there, in place of the real ones."""
    known: dict[str, str] = {}
    real = versions._version
    monkeypatch.setattr(versions, "_version", lambda name: known.get(name) or real(name))
    monkeypatch.setattr(versions, "misfits", versions.misfits.__wrapped__)
    return known


def test_this_installation_fits(installed: dict[str, str]) -> None:
    assert versions.misfits() == {}
    versions.require()


@pytest.mark.parametrize(("name", "version", "advice"), UNFIT)
def test_one_line_says_what_does_not_fit(installed: dict[str, str], name: str, version: str, advice: str) -> None:
    installed[name] = version
    with pytest.raises(InstallationError, match=rf"{name} is {re.escape(version)}: `?{re.escape(advice)}") as raised:
        versions.require()
    assert "\n" not in str(raised.value)
    rows = {finding.topic: finding for part in (doctor._python, doctor._packages) for finding in part()}
    assert rows[name].status == doctor.MISSING and advice in rows[name].advice


@pytest.mark.parametrize("version", ["3.10.13", "3.12.1", "3.13.0"])
def test_pythons_that_fit(installed: dict[str, str], version: str) -> None:
    installed["python"] = version
    assert "python" not in versions.misfits()


@pytest.mark.parametrize("version", ["1.26.4", "2.0.0", "2.5.5", "2.6.0rc1"])
def test_numpys_that_fit(installed: dict[str, str], version: str) -> None:
    installed["numpy"] = version
    assert "numpy" not in versions.misfits()


def test_the_metadata_has_the_same_ranges() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (first, end, _), (least, most, _) = versions._RANGES["python"], versions._RANGES["numpy"]
    assert f'requires-python = ">={first[0]}.{first[1]},<{end[0]}.{end[1]}"' in text
    assert f'"numpy>={least[0]}.{least[1]},<{most[0]}"' in text


def test_public_names_without_dace() -> None:
    code = (
        "import daceopt.versions as versions\n"
        "versions._version = lambda name, real=versions._version: 'absent' if name == 'dace' else real(name)\n"
        "for statement in ('from daceopt import optimized_module', 'import daceopt.onnx_backend'):\n"
        "    try: exec(statement)\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refusal = "InstallationError daceopt does not run here: dace is absent: `pip install"
    assert [line[: len(refusal)] for line in done.stdout.splitlines()] == 2 * [refusal]
