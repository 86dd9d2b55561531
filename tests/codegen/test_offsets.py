"""Places in an arena for blocks of known sizes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.codegen.offsets import Span, alive_at_once, offsets


def _check(spans: list[Span]) -> int:
    """The end of the plan; no two spans that are needed together overlap, and none reaches beyond the end."""
    places, end = offsets(spans)
    for k, (a, place) in enumerate(zip(spans, places, strict=True)):
        assert place >= 0 and place + a.bytes <= end
        for b, other in zip(spans[:k], places, strict=False):
            apart = a.last < b.first or b.last < a.first
            assert apart or place + a.bytes <= other or other + b.bytes <= place
    assert end >= alive_at_once(spans)
    return end


def test_nothing_takes_nothing() -> None:
    assert offsets([]) == ([], 0)


def test_small_blocks_stand_where_a_large_one_stood() -> None:
    """Whole slots, which one block after the other takes, would need 100 bytes and 50 more."""
    spans = [Span(100, 0, 1), Span(50, 2, 3), Span(50, 2, 3)]
    assert _check(spans) == 100


def test_a_large_block_stands_where_small_ones_stood() -> None:
    assert _check([Span(50, 0, 1), Span(50, 1, 2), Span(100, 3, 4)]) == 100


def test_a_gap_between_two_is_taken() -> None:
    assert _check([Span(40, 0, 9), Span(40, 0, 4), Span(40, 0, 9), Span(30, 5, 9), Span(10, 5, 9)]) == 120


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 6)), max_size=14))
def test_what_is_needed_together_does_not_overlap(blocks: list[tuple[int, int, int]]) -> None:
    _check([Span(64 * size, first, first + length) for size, first, length in blocks])
