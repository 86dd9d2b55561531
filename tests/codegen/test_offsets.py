"""Places in an arena for blocks of known sizes."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.codegen.offsets import Room, Span, offsets


def _alive(spans: list[Span], place: int) -> int:
    """The bytes that are needed at one position: no plan takes less."""
    return sum(s.bytes for s in spans if s.first <= place <= s.last)


def _check(spans: list[Span], rooms: tuple[Room, ...] = ()) -> int:
    """The end of the arena; no two spans that are needed together overlap, none stands where an occupant of its room
    does, and none reaches beyond the end of where it stands."""
    places, end = offsets(spans, rooms)
    for k, (a, place) in enumerate(zip(spans, places, strict=True)):
        assert place.offset >= 0
        assert place.offset + a.bytes <= (end if place.room is None else rooms[place.room].bytes)
        others = [(s, p.offset) for s, p in zip(spans[:k], places, strict=False) if p.room == place.room]
        others += rooms[place.room].occupants if place.room is not None else ()
        for b, other in others:
            apart = a.last < b.first or b.last < a.first
            assert apart or place.offset + a.bytes <= other or other + b.bytes <= place.offset
    assert rooms or end >= max((_alive(spans, s.first) for s in spans), default=0)
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


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 6)), max_size=14))
def test_what_is_needed_together_does_not_overlap(blocks: list[tuple[int, int, int]]) -> None:
    _check([Span(64 * size, first, first + length) for size, first, length in blocks])


def test_what_others_do_not_need_yet_or_any_more_is_taken_before_the_arena_grows() -> None:
    left = Room(100, ((Span(60, -1, 3), 0), (Span(40, -1, 7), 60)))
    result = Room(100, ((Span(100, 5, 99), 0),))
    assert _check([Span(100, 0, 4), Span(60, 4, 9)], (left, result)) == 0
    assert _check([Span(100, 0, 5), Span(60, 4, 9)], (left, result)) == 100
    assert _check([Span(101, 0, 4)], (left, result)) == 101  # no block stands in two rooms


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 6)), max_size=14),
    st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 12), st.integers(0, 9)), max_size=4), max_size=4),
)
def test_what_is_lent_is_not_needed_by_its_owner(
    blocks: list[tuple[int, int, int]], owned: list[list[tuple[int, int, int]]]
) -> None:
    rooms = []
    for row in owned:
        spans = [Span(64 * size, first, first + length) for size, first, length in row]
        starts = list(accumulate((s.bytes for s in spans), initial=0))
        rooms.append(Room(starts[-1], tuple(zip(spans, starts, strict=False))))
    _check([Span(64 * size, first, first + length) for size, first, length in blocks], tuple(rooms))
