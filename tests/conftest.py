"""What every test gets: a private cache folder shared by the session's workers, fixed seeds, no stray settings."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import kept_objects

_CACHE = "DACEOPT_CACHE_DIR"
_KEPT = "DACEOPT_TEST_OBJECTS"  # a folder for what the compiler made, from run to run


def pytest_configure(config: pytest.Config) -> None:
    """The first process makes the cache folder; workers inherit it through the environment."""
    too_slow = [HealthCheck.too_slow]  # what a machine does beside the tests is no finding
    settings.register_profile("daceopt", derandomize=True, database=None, deadline=None, suppress_health_check=too_slow)
    settings.load_profile("daceopt")
    if not hasattr(config, "workerinput"):
        config.stash[_FOLDER] = folder = tempfile.TemporaryDirectory(
            prefix="daceopt-tests-", ignore_cleanup_errors=True
        )
        os.environ[_CACHE] = str(Path(folder.name) / "cache")
        if kept := os.environ.pop(_KEPT, ""):
            config.stash[_OBJECTS] = Path(kept), time.time()
            kept_objects.take(Path(kept), Path(os.environ[_CACHE]))
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist runs files of many tests first; of time it knows nothing
    for name in ("DACEOPT_TRACE", "DACEOPT_DISABLE_CACHE", "DACEOPT_LOGS"):
        os.environ.pop(name, None)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait for work leave the cores to other workers


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Tests beyond their share get the mark ``breadth``. An address in a name differs between processes, and workers
    that run in parallel refuse to start. These get long files first, so that none of them is left alone with one."""
    for item in _beyond_their_share(items):
        item.add_marker(pytest.mark.breadth)
    named = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"give these parameters ids that are the same in each process: {named[:3]}")
    yield
    if hasattr(config, "workerinput"):
        weights = Counter[Path]()
        for item in items:
            weights[item.path] += _LONG if _is_long(item) else 1
        items.sort(key=lambda item: (-weights[item.path], item.path))


def _beyond_their_share(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """All but those on diagonals of the grid that decorators span, on which each case of each decorator is."""
    places: dict[tuple[Any, ...], dict[str, int]] = {}
    for item in items:
        share = item.get_closest_marker("share")
        if share is None:
            continue
        function = item.nodeid.partition("[")[0]
        ids = enumerate(item.callspec._idlist)  # type: ignore[attr-defined]  # indices count the whole grid
        own = [(places.setdefault((function, k), {}), name) for k, name in ids]
        if sum(known.setdefault(name, len(known)) for known, name in own) % share.args[0]:
            yield item


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Millions of objects of imported modules, which stay, are not looked through again and again, nor are others
    whenever Dynamo has compiled something. It does not time guards, for which it empties the CPU's caches: that is a
    seventh of a small test."""
    gc.disable()
    result = yield
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    if "torch._dynamo.guards" in sys.modules:
        sys.modules["torch._dynamo.config"].run_gc_after_compile = False  # type: ignore[attr-defined]
        sys.modules["torch._dynamo.guards"].profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    return result


_LONG = 60  # about how many tests take as long as one of those


def _is_long(item: pytest.Item) -> bool:
    """Also those that have a process of their own for hundreds of cases."""
    return item.get_closest_marker("slow") is not None or "worker" in getattr(item, "fixturenames", ())


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, None)
    if folder is None:
        return
    if _OBJECTS in config.stash:
        kept, began = config.stash[_OBJECTS]
        kept_objects.keep(kept, Path(folder.name) / "cache", began)
    folder.cleanup()


_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()
_OBJECTS = pytest.StashKey[tuple[Path, float]]()


@pytest.fixture(autouse=True)
def _one_machine() -> Iterator[None]:
    """Schedules are those of the reference machine, whatever runs the tests."""
    from daceopt.cost.limits import Limits, assume

    with assume(Limits(cores=2)):
        yield


@pytest.fixture(autouse=True)
def _small_graphs_are_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are small, and what is tested is what their programs do; a test that takes ``small_in_eager``
    leaves them where they are fastest."""
    from daceopt.modules import call_times

    if "small_in_eager" not in request.fixturenames:
        for mode in ("INFERENCE", "TRAINING"):
            monkeypatch.setattr(call_times, mode, call_times.CallTimes(0.0, 0.0, 0.0, 0.0))


@pytest.fixture
def small_in_eager() -> None:
    """Graphs of little work stay in eager PyTorch."""


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries under test draw from the global generator)
    torch.manual_seed(0)


@pytest.fixture
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of what modules do is decided around their programs, so these are interpreted and need no compiler;
    a test that takes ``built`` gets compiled ones all the same."""
    if "built" not in request.fixturenames:
        from tests.capture.torch.interpreted import compile_interpreted

        monkeypatch.setattr("daceopt.pipeline.compile_graph", compile_interpreted)


@pytest.fixture
def built() -> None:
    """Programs come from the compiler."""


@pytest.fixture
def fresh_cache(tmp_path: Path) -> Path:
    """A cache folder of the test's own, with nothing in it."""
    return tmp_path / "cache"


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs for CUDA run in the emulation, on arrays of the host."""
    from tests.codegen.cuda import emulated_target

    emulated_target.install_on_host(monkeypatch)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device whose libraries compute in float32, not in TF32."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
