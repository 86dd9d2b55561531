"""Numbers about an optimized module at work, from the records kept with its programs: nothing is derived again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daceopt.runtime.arithmetic import evaluate

if TYPE_CHECKING:
    from daceopt.programs.tuning.result import TuningResult

_LOWERING = "lower-operators"
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Effect:
    """Kernels and bytes moved, before (lowered, nothing fused) and after the recipe, both directions together."""

    kernels: tuple[int, int] = (0, 0)
    bytes_moved: tuple[float, float] = (0, 0)


def effect(history: Iterable[Record], sizes: Mapping[str, int] | None = None) -> Effect:
    """Sum up the history of a compiled pair (plain JSON records), for the given values of the size symbols.

    What fusion did between two lowering steps does not count as "before". Raises KeyError for a size that is not given.
    """
    graphs: dict[str, list[Record]] = {}
    for record in history:
        graphs.setdefault(record["graph"], []).append(record)
    effects = [_one_graph(records, sizes or {}) for records in graphs.values()]
    return Effect(
        (sum(e.kernels[0] for e in effects), sum(e.kernels[1] for e in effects)),
        (sum(e.bytes_moved[0] for e in effects), sum(e.bytes_moved[1] for e in effects)),
    )


def _one_graph(records: Sequence[Record], sizes: Mapping[str, int]) -> Effect:
    lowerings = [r for r in records if r["name"].partition("{")[0] == _LOWERING]
    first, later = (lowerings[0], lowerings[1:]) if lowerings else (None, [])
    last = records[-1]
    kernels, moved = (
        first["nodes_after"] if first else records[0]["nodes_before"],
        _bytes_moved(first, records[0], sizes),
    )
    for record in later:
        kernels += record["nodes_after"] - record["nodes_before"]
        moved += number(record["bytes_after"], sizes) - number(record["bytes_before"], sizes)
    return Effect((kernels, last["nodes_after"]), (moved, number(last["bytes_after"], sizes)))


def _bytes_moved(lowered: Record | None, first: Record, sizes: Mapping[str, int]) -> int:
    return number(lowered["bytes_after"] if lowered else first["bytes_before"], sizes)


def number(value: Any, sizes: Mapping[str, int]) -> int:
    """A count of a record: a number, or an expression over size symbols as our own code printed it into JSON.

    Raises KeyError when ``sizes`` lacks a symbol.
    """
    if isinstance(value, (int, float)):
        return int(value)
    return evaluate(value, sizes)


def sizes_of(manifest: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The values of a program's size symbols where its inputs, by role (``input:0``), have these shapes."""
    return {s.name: int(shapes[s.input][s.axis]) for s in manifest.symbols}


@dataclass
class Stats:
    """What became of the calls of one module, and what daceopt made of it.

    ``eager_calls`` computed nothing in compiled code; ``eager_pieces``: how often a graph, or a function whose graph
    was refused, of these or of other calls, ran in eager PyTorch; ``chosen_pieces``: how often because that is faster,
    which ``choices`` says. ``fallbacks``: why else, and how many for each reason.
    ``choices``: why programs have the recipes that they have, or are for one size each. ``tuning``: what ``tune`` has
    found, for each program, with its ``report()``, its ``recipe`` and ``save(path)``. ``kernels`` and ``bytes_moved``
    are (before, after) of the training program compiled last, or of the last program where none trains.
    """

    calls: int = 0
    eager_calls: int = 0
    eager_pieces: int = 0
    chosen_pieces: int = 0
    programs: int = 0
    cache_hits: int = 0
    compile_seconds: float = 0.0
    fallbacks: dict[str, int] = field(default_factory=dict)
    choices: list[str] = field(default_factory=list)
    tuning: list[TuningResult] = field(default_factory=list)
    _shown: tuple[Any, dict[str, Sequence[int]]] | None = field(default=None, repr=False, compare=False)

    def record(self, pair: Any, shapes: Mapping[str, Sequence[int]]) -> None:
        """Count a compiled pair, whose first call has inputs of these shapes by role."""
        self.programs += 1
        self.cache_hits += bool(pair.cached)
        self.choices += [pair.report["choice"]] if pair.report.get("choice") else []
        if self._shown is None or pair.backward is not None or self._shown[0].backward is None:
            self._shown = (pair, dict(shapes))

    def record_tuning(self, result: TuningResult) -> None:
        """Say what the fastest way was, as measured."""
        self.tuning.append(result)
        self.choices.append(str(result))

    def count_eager(self, pieces: int = 1, is_chosen: bool = False) -> None:
        """Count pieces that run in eager PyTorch; ``is_chosen``: because that is faster."""
        self.eager_pieces += pieces
        self.chosen_pieces += pieces if is_chosen else 0

    def count_small(self, pieces: int) -> None:
        """Count a call of so many pieces, all of which eager PyTorch runs faster."""
        self.calls += 1
        self.eager_calls += 1
        self.eager_pieces += pieces
        self.chosen_pieces += pieces

    @property
    def kernels(self) -> tuple[int, int]:
        return self._effect().kernels

    @property
    def bytes_moved(self) -> tuple[float, float]:
        return self._effect().bytes_moved

    def _effect(self) -> Effect:
        if self._shown is None:
            return Effect()
        pair, shapes = self._shown
        return effect(pair.report["history"], sizes_of(pair.forward.manifest, shapes))
