"""Objects of DaCe are the same without the checks of their making."""

from __future__ import annotations

import dace
import pytest
from dace.properties import DictProperty, Property, make_properties

from daceopt.ir.graph.graph import Graph
from daceopt.ir.graph.plain_properties import plain

assert Graph  # which makes the classes plain

MADE = {
    "memlet": lambda: dace.Memlet("x[0:4]"),
    "array": lambda: dace.data.Array(dace.float32, (2, 3)),
    "map": lambda: dace.nodes.Map("m", ["i"], dace.subsets.Range([(0, 3, 1)])),
    "tasklet": lambda: dace.nodes.Tasklet("t", {"a"}, {"b"}, "b = a"),
    "access": lambda: dace.nodes.AccessNode("x"),
}


@make_properties
class Base:
    numbers = DictProperty(key_type=str, value_type=int, default={"one": 1})
    width = Property(dtype=float, default=2)
    name = Property(dtype=str, allow_none=True, default=None)


@plain
@make_properties
class Derived(Base):
    depth = Property(dtype=int, default=3)
    given = Property(dtype=str)

    def __init__(self, given: str) -> None:
        super().__init__()
        self.given = given + str(self.depth)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_every_property_is_there(make):
    made = make()
    assert type(made).__init__.__name__ == "initialize"
    for name in type(made).__properties__:
        getattr(made, name)


def test_defaults_are_what_the_setters_make_of_them():
    plain(Base)
    first, second = Derived("a"), Derived("b")
    assert (first.given, second.given, first.depth, first.name) == ("a3", "b3", 3, None)
    assert first.width == 2 and isinstance(first.width, float)
    first.numbers["two"] = 2
    assert second.numbers == {"one": 1} and Derived("c").numbers == {"one": 1}


def test_what_is_assigned_is_checked_as_before():
    with pytest.raises(TypeError):
        Derived("a").depth = "deep"
    with pytest.raises(TypeError):
        dace.nodes.Map("m", 3, 4)


def test_connectors_of_two_nodes_are_not_one():
    a, b = MADE["access"](), MADE["access"]()
    assert a.in_connectors is not b.in_connectors
