"""The doctor's report: complete here, and with advice where something is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from daceopt.codegen.cuda import toolchain
from daceopt.commands import doctor
from daceopt.commands.doctor import MISSING, NOTE, Finding

PRINT = "import sys; from daceopt.commands import doctor; sys.exit(doctor.run(None))"


def test_report_names_everything(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path))
    findings = {finding.topic: finding for finding in doctor.report()}
    for topic in (
        "C++ compiler",
        "OpenMP",
        "vector width",
        "vector math",
        "threads",
        "torch",
        "dace",
        "onnxruntime",
        "cache",
    ):
        assert topic in findings
    assert not [finding for finding in findings.values() if finding.status == MISSING]
    assert str(tmp_path) in findings["cache"].detail
    assert "libraries" in findings or findings["Contraction"].detail.startswith("uses ")


def test_missing_compiler_is_exit_code_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": "", "CXX": "", "DACEOPT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "MISSING C++ compiler" in done.stdout
    assert "apt-get install g++" in done.stdout


def test_unusable_cache_folder_is_a_note(monkeypatch, tmp_path: Path, recwarn) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "file"))
    (finding,) = doctor._cache()
    assert finding.status == NOTE
    assert "DACEOPT_CACHE_DIR" in finding.advice


def test_render_counts_what_is_missing() -> None:
    text = doctor.render([Finding("a", MISSING, "none", "install a"), Finding("b", "ok", "1")])
    assert "-> install a" in text
    assert text.endswith("1 needed things are missing.")
    assert doctor.render([Finding("b", "ok", "1")]).endswith("Everything needed is there.")


def test_threads_are_those_that_programs_run_on(monkeypatch) -> None:
    monkeypatch.setattr(doctor.system, "cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (finding,) = doctor._threads()
    assert finding.detail == "torch and daceopt use 3, 2 of 8 cores are ours, OMP_NUM_THREADS=3"
    assert finding.status == NOTE and "set OMP_NUM_THREADS=2" in finding.advice
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.delenv("OMP_NUM_THREADS")
    (finding,) = doctor._threads()
    assert finding.status == "ok" and "OMP_NUM_THREADS is not set" in finding.detail
    assert "OMP_NUM_THREADS=2 would use all cores" in finding.advice
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    (finding,) = doctor._threads()
    assert finding.status == "ok" and finding.advice == ""


def test_what_cuda_needs_is_no_need_of_others(monkeypatch) -> None:
    """A machine without nvcc, a driver or a device is complete; each is a note with what to do."""
    monkeypatch.setattr(toolchain, "nvcc", lambda: None)
    monkeypatch.setattr(toolchain, "driver", lambda: None)
    compiler, devices = doctor._devices()
    assert (compiler.status, devices.status) == (NOTE, NOTE)
    assert "CUDA_HOME" in compiler.advice and devices.detail == "no driver"
    monkeypatch.setattr(toolchain, "driver", lambda: "NVIDIA UNIX x86_64 Kernel Module  580.65")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _, driver, devices = doctor._devices()
    assert driver.detail.endswith("580.65") and "install a build of torch with CUDA" in devices.advice
