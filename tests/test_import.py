"""Importing daceopt is quick: what is heavy loads on first use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import daceopt

HEAVY = ("dace", "onnx", "onnxscript", "sympy", "torch._dynamo", "onnxruntime", "transformers")


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-c", code]
    return subprocess.run(run, capture_output=True, text=True, check=True, env={**os.environ, **environment})


def test_heavy_packages_are_not_imported():
    code = f"""
import sys, torch
before = set(sys.modules)
import daceopt; daceopt.optimized_module
print([m for m in {HEAVY} if m in sys.modules and m not in before])
"""
    assert _python(code).stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = daceopt.nothing  # type: ignore[attr-defined]
    assert "optimized_module" in dir(daceopt) and daceopt.__version__


def test_logs_show_what_is_asked_for():
    code = "import logging, daceopt; logging.getLogger('daceopt.{}').info('hello')"
    assert "daceopt.build: hello" in _python(code.format("build"), DACEOPT_LOGS="build").stderr
    assert _python(code.format("cache"), DACEOPT_LOGS="build").stderr == ""
    assert "names 'builds'" in (said := _python("import daceopt", DACEOPT_LOGS="builds").stderr)
    assert "did you mean 'build'?" in said
    assert "did you mean" not in _python("import daceopt", DACEOPT_LOGS="zzz").stderr
