"""Rules as data: they print as the paper's tables, are read back, and are edited in one line."""

from __future__ import annotations

import pytest

from daceopt.errors import DaceoptError
from daceopt.ir.fusion.micro_graph import WAYS, Link
from daceopt.passes.aggregation_rules import COMPLEMENTARY, TABLE_1, TABLE_2, AggregationRule, RuleSet
from daceopt.passes.transform import Transformation
from daceopt.transformations.partition.aggregation import Aggregation

EQUAL, RESHAPED = Link("bijective", "bijective"), Link("opaque", "opaque")


def test_table_1_prints_as_in_the_paper() -> None:
    assert (
        TABLE_1.table()
        == """\
rule         G_p                     G_c           G_a
1            element-wise            element-wise  element-wise
2            broadcast               element-wise  broadcast
3            broadcast               broadcast     broadcast
4            element-wise            reduction     reduction
5            broadcast               reduction     reduction
6-transpose  element-wise/broadcast  transpose     transpose
6-matmul     matmul                  element-wise  matmul
6-matmul     element-wise            matmul        matmul
6-conv       conv                    element-wise  conv
6-conv       element-wise            conv          conv"""
    )


def test_table_2_and_what_complements_them() -> None:
    assert (
        (TABLE_2 + COMPLEMENTARY).table()
        == """\
rule  G_p           G_c                               G_a
7     reduction     element-wise/broadcast            reduction
8     reduction     reduction                         reduction
9     element-wise  broadcast                         broadcast
10    transpose     element-wise/broadcast/transpose  transpose
10    transpose     reduction                         reduction
11    any           any (through any)                 opaque
12    any           any beside it                     opaque
13    matmul        broadcast                         matmul
13    conv          broadcast                         conv"""
    )


def test_rules_of_one_name_have_the_same_priority() -> None:
    assert [[r.name for r in group] for group in TABLE_1.priorities()] == [
        *([n] for n in "12345"),
        ["6-transpose"],
        ["6-matmul"] * 2,
        ["6-conv"] * 2,
    ]


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (TABLE_1, "table-1"),
        (TABLE_1.without("5"), "1; 2; 3; 4; 6-transpose; 6-matmul; 6-conv"),
        (TABLE_2.in_order("8", "7"), "8; 7"),
        (TABLE_2 + "mine: stencil + reduction/opaque = opaque", "7; 8; mine: stencil + reduction/opaque = opaque"),
        (TABLE_2.before("8", "5"), "7; 5; 8"),
        (
            RuleSet.of("7: reduction -> transpose = reduction through opaque/bijective; 12"),
            "7: reduction -> transpose = reduction through opaque/bijective; 12",
        ),
        (RuleSet.of("r: any -> any = opaque through any"), "r: any -> any = opaque through any"),
        (RuleSet(), ""),
    ],
)
def test_a_set_is_its_text(rules: RuleSet, text: str) -> None:
    assert str(rules) == text
    assert RuleSet.of(text) == rules


def test_the_step_prints_and_is_read_back() -> None:
    assert str(Aggregation()) == "aggregation"
    step = Aggregation(rules=TABLE_1.without("5") + AggregationRule("mine", ("opaque",), ("reduction",), "opaque"))
    expected = "1; 2; 3; 4; 6-transpose; 6-matmul; 6-conv; mine: opaque -> reduction = opaque"
    assert str(step) == f"aggregation{{rules='{expected}'}}"
    assert str(Transformation.parse(str(step))) == str(step)


def test_what_a_rule_allows() -> None:
    four, eleven, twelve = (RuleSet.of(name).rules[0] for name in ("4", "11", "12"))
    assert four.allows("element-wise", "reduction", Link("permuted", "surjective"))
    assert not four.allows("element-wise", "reduction", RESHAPED)
    assert not four.allows("reduction", "element-wise", EQUAL)
    assert not four.allows("element-wise", "reduction", None)
    assert all(eleven.allows("stencil", "opaque", Link(way, "opaque")) for way in WAYS)
    assert not eleven.allows("matmul", "element-wise", EQUAL)
    assert twelve.allows("opaque", "broadcast", None) and not twelve.allows("opaque", "broadcast", EQUAL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("99", "no aggregation rule or table is called '99'; there are: table-1, table-2"),
        ("tabel-1", "did you mean"),
        ("1; x: reduction => opaque", "expected name: type/type -> type/type = type"),
        ("x: wise -> opaque = opaque", "rule x: no 'wise'; there are: element-wise, broadcast"),
        ("x: opaque -> opaque = opaque through walls", "rule x: no 'walls'; there are: bijective, permuted"),
        ("x: opaque -> opaque = everything", "rule x: no 'everything'"),
        ("x: any -> any = any", "rule x: no 'any'; there are: element-wise"),
        (7, "expected text or a RuleSet, found int"),
    ],
)
def test_bad_rules_say_what_is_expected(text: object, message: str) -> None:
    with pytest.raises(DaceoptError, match=message):
        RuleSet.of(text)
    with pytest.raises(DaceoptError, match=message):
        Aggregation(rules=text)


@pytest.mark.parametrize("edit", ["without", "before", "in_order"])
def test_edits_of_rules_that_are_not_there(edit: str) -> None:
    arguments = ("5", "1") if edit == "before" else ("5",)
    with pytest.raises(DaceoptError, match="no rule is called '5'; there are: 7, 8"):
        getattr(TABLE_2, edit)(*arguments)
