"""A strategy of distributed training as plain data: which gradients share a buffer, in which order reductions start,
and which operators are fused. Searched once, enacted anywhere (Yi et al., DisCo, sections 3.1 and 4.1)."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt import versions
from daceopt._version import __version__
from daceopt.errors import StrategyError

if TYPE_CHECKING:
    from torch import nn

FORMATS = tuple(f"daceopt strategy {k}" for k in (1, 2, 3))
SINCE = {"of_step": FORMATS[1], "sharded": FORMATS[1], "merges": FORMATS[2]}
"""What earlier formats do not say: it is false, or there is none."""
MAX_BYTES = 64 << 20
WAITS = ("use", "end")


@dataclass(frozen=True)
class Bucket:
    """The gradients of ``parameters`` lie side by side in one buffer, in this order, and are reduced together.

    ``sharded``: of a training step each rank gets the sums of a part of each, updates that, and gathers the parameters
    of all (reduce-scatter and all-gather); without the update the whole is reduced."""

    parameters: tuple[str, ...]
    sharded: bool = False


@dataclass(frozen=True)
class OperatorGroup:
    """Nodes of the graph before fusion that become one kernel, by the arrays that they write; of those in
    ``duplicated`` there is a copy outside, too (duplicate fusion, section 2.2). ``merges``: in which order, each of the
    kernels by then of two nodes, by their places; any that works where there are none."""

    nodes: tuple[str, ...]
    duplicated: tuple[str, ...] = ()
    merges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Weight:
    """A parameter that is trained: name, element type, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Identity:
    """What a strategy is for: the parameters of the model, the graph whose operators it groups ("" where it groups
    none), the number of workers, and the packages that made its code, as (name, version)."""

    weights: tuple[Weight, ...]
    world: int
    graph: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model: nn.Module, world: int, graph: str = "") -> Identity:
        """The identity of ``model`` as it is now, on ``world`` workers."""
        named = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
        weights = (Weight(n, str(p.dtype).removeprefix("torch."), tuple(p.shape)) for n, p in named)
        return cls(tuple(weights), world, graph, _versions())

    def differences(self, other: Identity) -> list[str]:
        """What ``other`` has in another way, a line each: "parameter fc.weight is float32[4, 3], expected ..."."""
        own, others = ({w.name: w for w in i.weights} for i in (self, other))
        texts = [f"parameter {n} is missing" for n in own if n not in others]
        texts += [f"there is a parameter {n} more" for n in others if n not in own]
        changed = [n for n in own if n in others and own[n] != others[n]]
        texts += [f"parameter {n} is {others[n]}, expected {own[n]}" for n in changed]
        if self.world != other.world:
            texts.append(f"{other.world} workers, expected {self.world}")
        if self.graph and other.graph and self.graph != other.graph:
            texts.append(f"the graph is {other.graph[:12]}, expected {self.graph[:12]}")
        return texts + _other_versions(dict(self.versions), dict(other.versions))


@dataclass(frozen=True)
class Strategy:
    """``buckets`` in the order in which their reductions start, the same on all workers; ``groups`` of operators, empty
    for what the recipe fuses; ``wait``: where reductions are waited for, at their ``use`` or at the ``end``;
    ``of_step``: whether the groups are of the graph of a training step, not of that of the model alone.

    Raises StrategyError unless the buckets have each parameter of the identity once.
    """

    identity: Identity
    buckets: tuple[Bucket, ...]
    groups: tuple[OperatorGroup, ...] = ()
    wait: str = "use"
    of_step: bool = False

    def __post_init__(self) -> None:
        if self.wait not in WAITS:
            raise StrategyError(f"reductions wait at {self.wait!r}; expected one of {list(WAITS)}")
        if self.identity.world < 1:
            raise StrategyError(f"a strategy for {self.identity.world} workers; expected one or more")
        listed = Counter(name for bucket in self.buckets for name in bucket.parameters)
        weights = {w.name: w for w in self.identity.weights}
        _refuse("is in several buckets", (n for n, count in listed.items() if count > 1))
        _refuse("is no parameter of the model", (n for n in listed if n not in weights))
        _refuse("is in no bucket", (n for n in weights if n not in listed))
        for k, bucket in enumerate(self.buckets):
            dtypes = {weights[n].dtype for n in bucket.parameters}
            if len(dtypes) != 1:
                raise StrategyError(f"bucket {k} has gradients of {sorted(dtypes)}; expected one element type")
        grouped = Counter(n for group in self.groups for n in group.nodes if n not in group.duplicated)
        _refuse("is in several groups and not duplicated", (n for n, count in grouped.items() if count > 1))

    def digest(self) -> str:
        """Stands for all that it says."""
        return _digest(_content(self))

    def differences(self, other: Identity) -> list[str]:
        """Why the strategy is not for ``other``: see :meth:`Identity.differences`."""
        return self.identity.differences(other)

    def check(self, identity: Identity) -> Strategy:
        """Itself. Raises StrategyError where it was made for something else than ``identity``, with each difference."""
        texts = self.differences(identity)
        if texts:
            rest = f"; and {len(texts) - 8} more" if len(texts) > 8 else ""
            raise StrategyError(f"the strategy is for something else: {'; '.join(texts[:8])}{rest}. Search it again")
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, at once: a reader sees the old file or the new one."""
        content = _content(self)
        target = Path(path)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump({"format": FORMATS[-1], "digest": _digest(content), **content}, file, indent=1)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(target)

    def text(self) -> str:
        """What ``save`` writes, in one line."""
        content = _content(self)
        return json.dumps({"format": FORMATS[-1], "digest": _digest(content), **content})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Strategy:
        """Read what ``save`` wrote. Raises StrategyError, with the place, for what is truncated, edited, or no
        strategy; OSError where there is no such file."""
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        try:
            return cls.parse(raw)
        except StrategyError as error:
            raise StrategyError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, raw: bytes | str) -> Strategy:
        """The strategy that ``raw`` says, as ``load``."""
        if len(raw) > MAX_BYTES:
            raise StrategyError(f"it is longer than {MAX_BYTES} bytes")
        try:
            tree = json.loads(raw, object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise StrategyError(f"it is not whole JSON: {error}") from None
        version = tree.get("format") if isinstance(tree, dict) else FORMATS[-1]
        if version not in FORMATS:
            raise StrategyError(f"format {version!r}; expected one of {list(FORMATS)}")
        reader = _Reader(version)
        content = reader.keys(tree, "strategy", ("format", "digest", *(f.name for f in fields(cls))))
        digest = content.pop("digest")
        del content["format"]
        strategy = reader.strategy(content)
        if digest != _digest(_content(strategy, version)):
            raise StrategyError(
                "it was changed after it was written: its content does not have the digest that it says"
            )
        return strategy


def _refuse(what: str, names: Iterable[str]) -> None:
    several = sorted(names)
    if several:
        more = f", and {len(several) - 3} more" if len(several) > 3 else ""
        raise StrategyError(f"{', '.join(several[:3])}{more} {what}")


def _versions() -> tuple[tuple[str, str], ...]:
    installed = dict(line.split(" ", 1) for line in versions.text().splitlines())
    return (("daceopt", __version__), ("torch", installed["torch"]))


def _other_versions(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    changed = [n for n in {**own, **other} if own.get(n) != other.get(n)]
    return [f"{n} {other.get(n, 'is absent')}, expected {own.get(n, 'none')}" for n in changed]


def _content(strategy: Strategy, version: str = FORMATS[-1]) -> dict[str, Any]:
    """Plain data, in a format."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(strategy)))
    for part in (content, *content["buckets"], *content["groups"]):
        for name in [n for n in part if not _has(version, n)]:
            del part[name]
    return content


def _has(version: str, name: str) -> bool:
    return FORMATS.index(version) >= FORMATS.index(SINCE.get(name, FORMATS[0]))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- reading


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key stands twice among {[k for k, _ in pairs][:8]}")
    return result


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


@dataclass(frozen=True)
class _Reader:
    """Reads what a format says."""

    version: str

    def keys(self, value: object, where: str, names: Iterable[str]) -> dict[str, Any]:
        """An object of those of the names that the format has."""
        return _keys(value, where, tuple(n for n in names if _has(self.version, n)))

    def strategy(self, content: Mapping[str, object]) -> Strategy:
        identity = _keys(content["identity"], "identity", tuple(f.name for f in fields(Identity)))
        return Strategy(
            Identity(
                tuple(_weight(w, f"weight {k}") for k, w in enumerate(_list(identity["weights"], "weights"))),
                _integer(identity["world"], "world"),
                _text(identity["graph"], "graph"),
                tuple(_version(v, f"version {k}") for k, v in enumerate(_list(identity["versions"], "versions"))),
            ),
            tuple(self._bucket(b, f"bucket {k}") for k, b in enumerate(_list(content["buckets"], "buckets"))),
            tuple(self._group(g, f"group {k}") for k, g in enumerate(_list(content["groups"], "groups"))),
            _text(content["wait"], "wait"),
            _flag(content.get("of_step", False), "of_step"),
        )

    def _group(self, value: object, where: str) -> OperatorGroup:
        items = self.keys(value, where, (f.name for f in fields(OperatorGroup)))
        nodes, duplicated = (
            tuple(_text(n, where) for n in _list(items[key], f"{key} of {where}")) for key in ("nodes", "duplicated")
        )
        merges = (
            _pair(m, f"merge {k} of {where}", "two places") for k, m in enumerate(_list(items.get("merges", []), where))
        )
        return OperatorGroup(nodes, duplicated, tuple((_integer(a, where), _integer(b, where)) for a, b in merges))

    def _bucket(self, value: object, where: str) -> Bucket:
        entries = self.keys(value, where, (f.name for f in fields(Bucket)))
        names = tuple(_text(n, where) for n in _list(entries["parameters"], where))
        if not names:
            raise StrategyError(f"{where} is empty; expected one name or more")
        return Bucket(names, _flag(entries.get("sharded", False), f"sharded of {where}"))


def _weight(value: object, where: str) -> Weight:
    entries = _keys(value, where, ("name", "dtype", "shape"))
    shape = tuple(_integer(n, f"shape of {where}") for n in _list(entries["shape"], f"shape of {where}"))
    return Weight(_text(entries["name"], where), _text(entries["dtype"], where), shape)


def _version(value: object, where: str) -> tuple[str, str]:
    name, version = _pair(value, where, "a name and a version")
    return _text(name, where), _text(version, where)


def _pair(value: object, where: str, what: str) -> tuple[Any, Any]:
    items = _list(value, where)
    if len(items) != 2:
        raise StrategyError(f"{where} has {len(items)} entries; expected {what}")
    return items[0], items[1]


def _keys(value: object, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StrategyError(f"{where} is of type {type(value).__name__}; expected an object")
    if set(value) != set(keys):
        raise StrategyError(f"{where} has the keys {sorted(value)[:12]}; expected {sorted(keys)}")
    return dict(value)


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise StrategyError(f"{where}: {type(value).__name__}; expected a list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise StrategyError(f"{where}: {type(value).__name__}; expected text")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise StrategyError(f"{where}: {value!r}; expected true or false")
    return value


def _integer(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise StrategyError(f"{where}: {value!r}; expected an integer of 0 or more")
    return value
