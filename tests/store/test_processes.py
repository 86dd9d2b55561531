"""Many processes on one cache folder, one of them killed; and what a build writes outside that folder."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

BUILD = """
import sys
from pathlib import Path
import numpy as np
from daceopt.codegen import compiler
from daceopt.store.cache import Cache, default_cache
from tests.codegen.programs import build_scale, run_scale
slow, log = float(sys.argv[1]), Path(sys.argv[2])
real = compiler._start
def start(command, source, folder):
    import time
    with log.open("a") as stream:
        stream.write(f"{command[-1]}\\n")
    time.sleep(slow)
    return real(command, source, folder)
compiler._start = start
program = build_scale(default_cache())
x = np.arange(1000, dtype=np.float32)
assert (run_scale(program, x) == 3 * x).all()
"""
ROOT = Path(__file__).parents[2]


def start(folder: Path, slow: float, log: Path, **environment: str) -> subprocess.Popen[str]:
    everything = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "DACEOPT_CACHE_DIR": str(folder)}
    everything.update(environment)
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(slow), str(log)], env=everything, stderr=subprocess.PIPE, text=True
    )


def test_eight_processes_with_one_killed_halfway(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    victim = start(folder, 60, log)
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:  # it holds a lock and a work folder from here on
        time.sleep(0.01)
    others = [start(folder, 0, log) for _ in range(7)]
    time.sleep(0.5)
    victim.kill()
    victim.communicate()
    for process in others:
        _, messages = process.communicate(timeout=120)
        assert process.returncode == 0, messages
    # The victim's two compilations, then the header, each source and the link once among the seven.
    assert len(log.read_text().splitlines()) <= 2 + 4
    assert not list((folder / "v1" / "locks").iterdir())


def test_nothing_is_written_outside_the_cache_folder(tmp_path: Path) -> None:
    home, here, temporary = (tmp_path / name for name in ("home", "here", "tmp"))
    for folder in (home, here, temporary):
        folder.mkdir()
    code = BUILD.replace("sys.argv[1]", "0").replace("sys.argv[2]", repr(str(tmp_path / "log")))
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "TMPDIR": str(temporary),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=here, check=True)
    assert [path.name for path in home.iterdir()] == [".cache"]
    assert [path.name for path in (home / ".cache").iterdir()] == ["daceopt"]
    assert not list(here.iterdir())
    assert not list(temporary.iterdir())
    subprocess.run(
        [sys.executable, "-c", code], env={**environment, "DACEOPT_DISABLE_CACHE": "1"}, cwd=here, check=True
    )
    assert not list(temporary.iterdir())
