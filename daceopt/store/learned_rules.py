"""Patterns of fusion that this machine has tried in vain, with the reason: what aggregation leaves alone from then on.

The feedback of APOLLO (Zhao et al., MLSys 2022, sections 3.3 and 4.1): a micro-graph that the loop optimizer cannot
schedule becomes a rule of the partition. Each pattern is an entry of the cache, so it is whole or not there, whoever
writes at once, and what is damaged is as if it had not been learned. Keys of programs do not hold what was learned: a
program that was built before is as right as one that is built after it.
"""

from __future__ import annotations

import json
from pathlib import Path

from daceopt import system as facts
from daceopt.store.cache import Cache, default_cache, key

_KIND, _FILE, _VERSION = "rules", "rule.json", 1
_LONGEST = 4000  # characters of a pattern or a reason


def refuse(pattern: str, reason: str) -> None:
    """Remember that ``pattern`` (``ir.fusion.micro_graph.pattern_of``) cannot be scheduled on this machine.

    The latest reason counts. Raises ValueError for an empty pattern; texts are kept up to 4000 characters.
    """
    if not pattern.strip():
        raise ValueError("a learned rule needs the pattern that it refuses; found an empty text")
    fields = {"pattern": pattern[:_LONGEST], "reason": reason[:_LONGEST]}
    store, identity = default_cache(), _identity(fields["pattern"])
    store.discard(_KIND, identity)
    store.put(_KIND, identity, lambda folder: _write(folder, fields))


def refusal(pattern: str) -> str | None:
    """Why ``pattern`` is not to be tried again on this machine, or None."""
    entry = default_cache().get(_KIND, _identity(pattern[:_LONGEST]))
    rule = None if entry is None else _read(entry)
    return None if rule is None or rule[0] != pattern[:_LONGEST] else rule[1]


def all_refusals() -> dict[str, str]:
    """Pattern -> reason, of all that this machine has learned, by pattern."""
    store = default_cache()
    rules = (_entry(store, identity) for identity in store.keys(_KIND))
    return dict(sorted(rule for rule in rules if rule is not None))


def drop(pattern: str | None = None) -> int:
    """Forget one pattern, or all of this machine; returns how many were known."""
    wanted = [p for p in all_refusals() if pattern is None or p == pattern]
    for rule in wanted:
        default_cache().discard(_KIND, _identity(rule))
    return len(wanted)


def _identity(pattern: str) -> str:
    return key(_KIND, _VERSION, facts.fingerprint(), pattern)


def _entry(store: Cache, identity: str) -> tuple[str, str] | None:
    """A rule of this machine under its own key."""
    entry = store.get(_KIND, identity)
    rule = None if entry is None else _read(entry)
    return rule if rule is not None and _identity(rule[0]) == identity else None


def _read(entry: Path) -> tuple[str, str] | None:
    """Pattern and reason; None for what is no rule."""
    try:
        fields = json.loads((entry / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    pattern, reason = fields.get("pattern"), fields.get("reason")
    if not isinstance(pattern, str) or not isinstance(reason, str) or len(pattern) + len(reason) > 2 * _LONGEST:
        return None
    return pattern, reason


def _write(folder: Path, fields: dict[str, str]) -> None:
    (folder / _FILE).write_text(json.dumps(fields), encoding="utf-8")
