"""The runner finds out which case crashed; the worker is a stand-in of a few lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.onnx_suite import exclusions
from tests.onnx_suite.runner import Worker

STAND_IN = """
import json, sys
say = lambda message: print(json.dumps(message), flush=True)
say({})
for line in sys.stdin:
    code = 0
    for name in json.loads(line)["names"]:
        say({"doing": name})
        if name in ("segfault", "slow", "exit"):
            code = {"segfault": -11, "slow": -14, "exit": 1}[name]
            break
        say({"name": name, "reason": "" if name != "wrong" else "AssertionError: 1 is not 2"})
    say({"exit": code})
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker([sys.executable, "-c", STAND_IN.replace("say({})", 'say({"a": ["node", True]})')])
    yield made
    made.close()


def test_each_case_gets_its_own_result(worker: Worker) -> None:
    found = worker.run(["a", "segfault", "wrong", "slow", "b", "exit", "c"], "native")
    assert [name for name, reason in found.items() if not reason] == ["a", "b", "c"]
    assert found["segfault"] == "Crash: SIGSEGV" and found["exit"] == "Crash: exit code 1"
    assert found["slow"] == "Timeout in slow" and found["wrong"].startswith("AssertionError")


def test_surprises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusions, "excluded", lambda: {"text": "tensors of text", "late": "not yet"})
    found = exclusions.surprises({"text": "Unsupported", "late": "", "new": "a crash", "good": ""})
    assert found == ["late passes, but is excluded: not yet", "new fails: a crash"]
