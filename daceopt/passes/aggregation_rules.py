"""Which micro-graphs may become one: rules as data, which print as the tables of the paper and are read back.

APOLLO (Zhao et al., MLSys 2022): Table 1 (section 3.3), Table 2 (section 4.2), and what complements them, as section 8
invites. A rule speaks of types (``micro_graph.TYPES``), which follow from dataflow; it allows a merge, and whether
there is a kernel that does what both do is decided where it is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.fusion.micro_graph import TYPES, WAYS, Link

ANY = "any"
PLAIN = ("bijective", "permuted", "injective")  # views that are no operator of their own: transpositions, broadcasts
_SPELLED = re.compile(r"([\w-]+):\s*([\w/-]+)\s*(->|\+)\s*([\w/-]+)\s*=\s*([\w-]+)(?:\s+through\s+([\w/-]+))?")
_FORM = "name: type/type -> type/type = type [through way/way], or a + in the place of the arrow"


@dataclass(frozen=True)
class AggregationRule:
    """A producer and a consumer of these types may become one micro-graph of the type ``result``.

    ``any`` stands for all types but the compute-bound ones. ``through``: ways (``micro_graph.WAYS``) of the array
    into what the consumer reads, which views make; a reshape is ``opaque``. ``siblings``: both read one array, and
    neither need read the other.
    """

    name: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    result: str
    through: tuple[str, ...] = PLAIN
    siblings: bool = False

    def __post_init__(self) -> None:
        for kind in (*self.producers, *self.consumers):
            _check(f"rule {self.name}", kind, (*TYPES, ANY))
        _check(f"rule {self.name}", self.result, TYPES)
        for way in self.through:
            _check(f"rule {self.name}", way, WAYS)

    def allows(self, producer: str, consumer: str, link: Link | None) -> bool:
        """May two of these types be one? ``link``: how the one reads the other; None: both read one array."""
        fits = _fits(producer, self.producers) and _fits(consumer, self.consumers)
        if link is None or self.siblings:
            return fits and self.siblings and link is None
        return fits and link.view in self.through

    def __str__(self) -> str:
        sides = f"{'/'.join(self.producers)} {'+' if self.siblings else '->'} {'/'.join(self.consumers)}"
        through = "" if self.through == PLAIN else f" through {_ways(self.through)}"
        return f"{self.name}: {sides} = {self.result}{through}"

    @staticmethod
    def parse(text: str) -> AggregationRule:
        """``"4: element-wise -> reduction = reduction"`` -> the rule. Raises DaceoptError."""
        matched = _SPELLED.fullmatch(text.strip())
        if matched is None:
            raise DaceoptError(f"aggregation rule {text!r}: expected {_FORM}")
        name, producers, arrow, consumers, result, through = matched.groups()
        ways = WAYS if through == ANY else tuple(through.split("/")) if through else PLAIN
        sides = tuple(producers.split("/")), tuple(consumers.split("/"))
        return AggregationRule(name, *sides, result, ways, arrow == "+")


def _ways(ways: tuple[str, ...]) -> str:
    return ANY if ways == WAYS else "/".join(ways)


def _check(where: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise DaceoptError(f"{where}: no {name!r}; there are: {', '.join(names)}" + did_you_mean(name, list(names)))


def _fits(kind: str, kinds: tuple[str, ...]) -> bool:
    return kind in kinds or (ANY in kinds and kind not in ("matmul", "conv"))


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order of their priority; those of one name that are together have the same priority.

    ``str`` is the text that ``RuleSet.of`` reads, ``table`` what the paper shows.
    """

    rules: tuple[AggregationRule, ...] = ()

    @staticmethod
    def of(rules: object) -> RuleSet:
        """A rule set, or one from text: names of rules and tables, and spelled rules, between semicolons.

        Raises DaceoptError.
        """
        if isinstance(rules, RuleSet):
            return rules
        if not isinstance(rules, str):
            raise DaceoptError(f"rules={rules!r}: expected text or a RuleSet, found {type(rules).__name__}")
        return RuleSet(tuple(rule for item in rules.split(";") if item.strip() for rule in _rules_named(item.strip())))

    def priorities(self) -> Iterator[tuple[AggregationRule, ...]]:
        """The rules of each priority, the first one first."""
        for _, group in groupby(self.rules, lambda rule: rule.name):
            yield tuple(group)

    def names(self) -> list[str]:
        """Each name once."""
        return list(dict.fromkeys(rule.name for rule in self.rules))

    def without(self, *names: str) -> RuleSet:
        """The set without the rules of these names. Raises DaceoptError for a name that it does not have."""
        for name in names:
            self._at(name)
        return RuleSet(tuple(rule for rule in self.rules if rule.name not in names))

    def before(self, name: str, rule: AggregationRule | str) -> RuleSet:
        """The set with ``rule`` (or what it spells) before those called ``name``."""
        at = self._at(name)
        return RuleSet((*self.rules[:at], *RuleSet.of(_text(rule)).rules, *self.rules[at:]))

    def in_order(self, *names: str) -> RuleSet:
        """The rules of these names, in this order, and no others."""
        for name in names:
            self._at(name)
        return RuleSet(tuple(rule for name in names for rule in self.rules if rule.name == name))

    def __add__(self, other: RuleSet | AggregationRule | str) -> RuleSet:
        """With more rules, which come last."""
        return RuleSet((*self.rules, *RuleSet.of(_text(other)).rules))

    def _at(self, name: str) -> int:
        names = [rule.name for rule in self.rules]
        if name not in names:
            raise DaceoptError(f"no rule is called {name!r}; there are: {', '.join(self.names())}")
        return names.index(name)

    def table(self) -> str:
        """The rules in columns: name, types of the producer and the consumer, type of what they become."""
        rows = [("rule", "G_p", "G_c", "G_a")]
        for rule in self.rules:
            consumers = "/".join(rule.consumers) + (" beside it" if rule.siblings else "")
            through = "" if rule.through == PLAIN else f" (through {_ways(rule.through)})"
            rows.append((rule.name, "/".join(rule.producers), consumers + through, rule.result))
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)

    def __str__(self) -> str:
        for name, table in TABLES.items():
            if self == table:
                return name
        return "; ".join(x for group in self.priorities() for x in _spell(group))

    def __repr__(self) -> str:
        return repr(str(self))


def _spell(group: tuple[AggregationRule, ...]) -> list[str]:
    name = group[0].name
    return [name] if group == _KNOWN.get(name) else [str(rule) for rule in group]


def _text(rule: object) -> Any:
    return RuleSet((rule,)) if isinstance(rule, AggregationRule) else rule


def _rules_named(item: str) -> tuple[AggregationRule, ...]:
    if ":" in item:
        return (AggregationRule.parse(item),)
    if item in TABLES:
        return TABLES[item].rules
    if item not in _KNOWN:
        names = [*TABLES, *_KNOWN]
        listed = f"no aggregation rule or table is called {item!r}; there are: {', '.join(names)}"
        raise DaceoptError(f"{listed}; a rule is spelled {_FORM}" + did_you_mean(item, names))
    return _KNOWN[item]


def _rules(text: str) -> RuleSet:
    return RuleSet(tuple(map(AggregationRule.parse, text.strip().splitlines())))


TABLE_1 = _rules("""
1: element-wise -> element-wise = element-wise
2: broadcast -> element-wise = broadcast
3: broadcast -> broadcast = broadcast
4: element-wise -> reduction = reduction
5: broadcast -> reduction = reduction
6-transpose: element-wise/broadcast -> transpose = transpose
6-matmul: matmul -> element-wise = matmul
6-matmul: element-wise -> matmul = matmul
6-conv: conv -> element-wise = conv
6-conv: element-wise -> conv = conv
""")

TABLE_2 = _rules("""
7: reduction -> element-wise/broadcast = reduction
8: reduction -> reduction = reduction
""")

# what both tables leave open: their section 8 says that the rules are incomplete
COMPLEMENTARY = _rules("""
9: element-wise -> broadcast = broadcast
10: transpose -> element-wise/broadcast/transpose = transpose
10: transpose -> reduction = reduction
11: any -> any = opaque through any
12: any + any = opaque
13: matmul -> broadcast = matmul
13: conv -> broadcast = conv
""")

TABLES = {"table-1": TABLE_1, "table-2": TABLE_2, "complementary": COMPLEMENTARY}
_KNOWN: dict[str, tuple[AggregationRule, ...]] = {
    name: tuple(group) for table in TABLES.values() for name, group in groupby(table.rules, lambda rule: rule.name)
}
