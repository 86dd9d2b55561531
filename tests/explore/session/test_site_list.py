"""Sites of a session: found, picked again after other changes, applied one by one."""

from __future__ import annotations

import pytest

import daceopt
from daceopt.errors import SessionError
from tests.explore.sessions import chain, lowered, session, texts


def test_sites_of_all_transformations_say_where_and_why_not() -> None:
    at = lowered()
    before = texts(at)
    found = at.sites()
    assert texts(at) == before
    assert {s.transformation.name for s in found} >= {"map-fusion", "epilogue-fusion", "vectorization"}
    assert any(s.origin == "blocks.0.up" for s in found) and not found.failures
    assert "differentiate" in found.whole
    assert all(str(m) for m in found.near_misses)
    shown = str(found.matching("epilogue-fusion"))
    assert "epilogue-fusion at matmul + add (forward, from blocks.0.up)" in shown and "map-fusion" not in shown


def test_what_comes_too_late_is_not_looked_for() -> None:
    at = lowered(1).apply("map-fusion").apply("threading")
    found = at.sites()
    assert {"map-fusion", "constant-folding", "lower-operators"} <= {*found.late} and "vectorization" not in found.late
    assert {s.transformation.level for s in found} == {"hardware"} and "too late for: aggregation" in str(found)
    for site in found:
        at.branch(str(site)).apply(site)
    assert not at.sites("compound-opening").late, "what is named is looked for"


def test_near_misses_say_why() -> None:
    at = session().apply("lower-operators{keep_rules=True}").apply("differentiate").apply("lower-operators")
    found = at.sites("epilogue-fusion")
    assert any("the product is read through a view" in str(m) and m.direction == "backward" for m in found.near_misses)


def test_a_single_site() -> None:
    at = lowered()
    sites = at.sites("epilogue-fusion")
    assert len(sites) == 4 and at.apply(sites[2]) is at
    after = at.sites("epilogue-fusion")
    assert [s.origin for s in after] == [s.origin for k, s in enumerate(sites) if k != 2]
    assert at.at.sites() == 1 and "blocks.1.up" in at.at.title
    outside = after[0].apply().sites("epilogue-fusion")
    assert len(outside) == 2


def test_sites_are_found_again_after_others_were_applied() -> None:
    """Their numbers among equal ones change with each."""
    again = daceopt.explore(chain("Exp", "Neg", "Exp", "Neg", "Exp"))
    third, first = (again.sites("lower-operators")[k] for k in (4, 0))
    again.apply(first).apply(third)
    assert [n.op_type for n in again.forward.operators()] == ["Neg", "Exp", "Neg"]
    with pytest.raises(SessionError, match="is no site any more"):
        again.apply(first)


def test_a_site_that_is_gone_is_an_error() -> None:
    at = lowered()
    site = at.sites("epilogue-fusion")[0]
    at.apply(site)
    before = texts(at)
    with pytest.raises(SessionError, match=r"epilogue-fusion at matmul \+ add .* is no site any more"):
        at.apply(site)
    assert texts(at) == before
    at.undo().apply(site)
    assert texts(at) == before
