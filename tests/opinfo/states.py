"""What became of each case, and of each entry: the worst of its cases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.onnx_suite.cases import share_of
from tests.opinfo.entries import Case, cases, entries

# from good to bad; a case that eager PyTorch refuses is skipped and says nothing
STATES = ("native", "host", "break", "refused", "failed", "timeout", "crash", "wrong")
RUNS = frozenset(("native", "host"))
WRONG = frozenset(("failed", "timeout", "crash", "wrong"))
FILE = Path(__file__).parent / "states.json"

Results = Mapping[str, Any]  # name of a case -> its record, or how its process died


def record(found: Any) -> dict[str, Any]:
    """A record also for what is only a text: a case that took its process with it."""
    if isinstance(found, dict):
        return found
    return {"state": "timeout" if str(found).startswith("Timeout") else "crash", "reason": str(found)}


@dataclass
class Entry:
    """The state of an entry: the worst of its cases, with the reason of the first such case."""

    state: str = "native"
    gradient: str | None = None
    forward: set[str] = field(default_factory=set)
    backward: set[str] = field(default_factory=set)
    why: dict[str, str] = field(default_factory=dict)
    where: str = ""
    reason: str = ""
    count: Counter[str] = field(default_factory=Counter)

    def add(self, case: str, found: Mapping[str, Any]) -> None:
        state = found["state"]
        self.count[state] += 1
        self.forward |= set(found.get("forward", ()))
        self.backward |= set(found.get("backward", ()))
        self.why |= found.get("why", {})
        if STATES.index(state) > STATES.index(self.state):
            self.state, self.where, self.reason = state, case, found["reason"]
        if found.get("gradient") and self.gradient != "host":
            self.gradient = found["gradient"]

    def to_json(self) -> dict[str, Any]:
        """What is kept in the repository."""
        kept: dict[str, Any] = {"state": self.state, "gradient": self.gradient}
        kept |= {k: sorted(v) for k, v in (("forward", self.forward), ("backward", self.backward)) if v}
        if self.state not in RUNS:
            kept |= {"where": self.where, "reason": self.reason.partition("\n")[0][:200]}
        return kept


def by_entry(results: Results) -> dict[str, Entry]:
    """The entries of which a case ran, sorted."""
    found: dict[str, Entry] = {}
    for name, result in sorted(results.items()):
        if (one := record(result))["state"] != "skipped":
            found.setdefault(Case.parse(name).entry, Entry()).add(name, one)
    return dict(sorted(found.items()))


def summary(results: Results) -> list[str]:
    """Counts of cases and entries, and the share that the goal speaks of."""
    states = by_entry(results)
    cases = Counter(record(r)["state"] for r in results.values())
    lines = [f"cases: {_counts(cases)}", f"entries: {_counts(Counter(e.state for e in states.values()))}"]
    known = {n: e for n, e in states.items() if entries()[n].has_gradient}
    whole, partly = share(known)
    lines.append(f"entries with a gradient: {len(known)}, {whole:.1%} native or host call, {partly:.1%} in some case")
    return lines


def share(states: Mapping[str, Entry]) -> tuple[float, float]:
    """The part of which all cases run, and of which any does."""
    whole = sum(e.state in RUNS for e in states.values())
    partly = sum(any(e.count[s] for s in RUNS) for e in states.values())
    return whole / max(1, len(states)), partly / max(1, len(states))


def _counts(found: Counter[str]) -> str:
    order = [*STATES, "skipped"]
    return ", ".join(f"{found[s]} {s}" for s in order if found[s])


def write(results: Results, file: Path) -> None:
    """All records, as JSON."""
    file.write_text(json.dumps({n: record(r) for n, r in results.items()}, indent=0))


def merge(results: Results, how: str, file: Path = FILE) -> dict[str, Any]:
    """What is kept of all runs, with these entries as they are now: ``entries`` by name, and ``hosted``, the operators
    that ATen runs, with the reason, and ``how`` the latest of these runs was made. Written to ``file``."""
    kept = kept_states(file)
    found = by_entry(results)
    kept["entries"] = dict(sorted({**kept["entries"], **{n: e.to_json() for n, e in found.items()}}.items()))
    used = {name for e in kept["entries"].values() for name in (*e.get("forward", ()), *e.get("backward", ()))}
    reasons = {**kept["hosted"], **{name: why for e in found.values() for name, why in e.why.items()}}
    kept["hosted"] = {n: why for n, why in sorted(reasons.items()) if n in used}
    kept["how"] = how
    file.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def merge_peer(results: Results, name: str, file: Path = FILE) -> dict[str, Any]:
    """Keep what a backend of PyTorch does with the same: of the entries with a gradient how many run, and of the same
    entries how many run here."""
    kept = kept_states(file)
    theirs = {n: e for n, e in by_entry(results).items() if entries()[n].has_gradient and n in kept["entries"]}
    ours = sum(kept["entries"][n]["state"] in RUNS for n in theirs)
    runs = sum(e.state in RUNS for e in theirs.values())
    kept.setdefault("peers", {})[name] = {"entries": len(theirs), "theirs": runs, "ours": ours}
    file.write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def unrecorded(results: Results, kept: Mapping[str, Any]) -> list[str]:
    """Entries for which ATen runs operators that ``kept``, the states in the repository, does not tell of."""
    lines = []
    for name, entry in by_entry(results).items():
        row = kept["entries"].get(name, {})
        more = (entry.forward - set(row.get("forward", ()))) | (entry.backward - set(row.get("backward", ())))
        if more:
            lines.append(f"{name}: ATen runs {', '.join(sorted(more))}, which is not recorded: {entry.why}")
    return lines


def kept_states(file: Path = FILE) -> dict[str, Any]:
    """What ``merge`` wrote."""
    return json.loads(file.read_text()) if file.exists() else {"entries": {}, "hosted": {}, "how": ""}


def chosen(pattern: Any, dtypes: Sequence[str], limit: int | None, part: tuple[int, int] = (0, 1)) -> list[str]:
    """Names of the cases that are asked for; ``part`` (k, n): the k-th of n shares of the entries in each type."""
    pairs = [(name, d) for name in entries() if pattern.search(name) for d in dtypes]
    mine = [pair for pair in pairs if share_of("/".join(pair), part[1]) == part[0]]
    return [str(case) for name, dtype in mine for case in cases(name, dtype, limit)]
