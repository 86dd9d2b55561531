"""What aggregation has learned: kept among processes, listed, dropped, and never a reason to crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from daceopt.store import learned_rules, sealed
from daceopt.store.cache import default_cache


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DACEOPT_CACHE_DIR", str(tmp_path / "cache"))


def entry_of(pattern: str) -> Path:
    found = default_cache().get("rules", learned_rules._identity(pattern))
    assert found is not None
    return found


def test_a_rule_is_kept_and_found() -> None:
    assert learned_rules.all_refusals() == {} and learned_rules.refusal("reduction: 1f") is None
    learned_rules.refuse("reduction: 1f", "no schedule within 2 s")
    learned_rules.refuse("broadcast: 2e", "no schedule within 2 s")
    learned_rules.refuse("reduction: 1f", "no schedule within 4 s")
    assert learned_rules.refusal("reduction: 1f") == "no schedule within 4 s"
    assert list(learned_rules.all_refusals()) == ["broadcast: 2e", "reduction: 1f"]


def test_another_process_knows_it() -> None:
    learned_rules.refuse("reduction: 1f", "no schedule within 2 s")
    code = "from daceopt.store import learned_rules; print(learned_rules.refusal('reduction: 1f'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "no schedule within 2 s\n"


def test_one_is_dropped_or_all() -> None:
    for name in "abc":
        learned_rules.refuse(name, "why")
    assert learned_rules.drop("a") == 1 and learned_rules.drop("a") == 0
    assert learned_rules.drop() == 2 and learned_rules.all_refusals() == {}


def test_another_machine_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    learned_rules.refuse("reduction: 1f", "why")
    monkeypatch.setattr("daceopt.system.fingerprint", lambda: "another")
    assert learned_rules.refusal("reduction: 1f") is None and learned_rules.all_refusals() == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"pattern": 1, "reason": "r"}',
        b'{"pattern": "p"}',
        b'{"pattern": "another", "reason": "r"}',
        b"[" * 100_000,
        json.dumps({"pattern": "p" * 9000, "reason": "r"}).encode(),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("seal", [False, True], ids=["damaged", "sealed"])
def test_what_is_no_rule_was_never_learned(content: bytes, seal: bool) -> None:
    learned_rules.refuse("p", "why")
    entry = entry_of("p")
    (entry / "rule.json").write_bytes(content)
    if seal:
        (entry / "entry.json").unlink()
        sealed.seal(entry)
    assert learned_rules.refusal("p") is None and learned_rules.all_refusals() == {}
    learned_rules.refuse("p", "again")
    assert learned_rules.all_refusals() == {"p": "again"}


def test_long_texts_are_cut_and_empty_patterns_refused() -> None:
    learned_rules.refuse("p" * 9000, "r" * 9000)
    assert learned_rules.refusal("p" * 9000) == "r" * 4000
    with pytest.raises(ValueError, match="needs the pattern"):
        learned_rules.refuse(" ", "why")
