"""Space in buffers: no two tensors that live together overlap, and who leaves is who lives longest (or is largest)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from daceopt.cost.simulator.allocation import LARGEST, LONGEST, Lifetime, allocate

TENSORS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 12)), max_size=30)


@settings(max_examples=200)
@given(TENSORS, st.integers(1, 90), st.sampled_from([LONGEST, LARGEST]))
def test_those_that_live_together_stand_apart(wanted: list[tuple[int, int, int]], capacity: int, spill: str) -> None:
    tensors = [Lifetime(f"t{k}", size, first, first + life) for k, (size, first, life) in enumerate(wanted)]
    found = allocate(tensors, capacity, spill)
    assert sorted([*found.offsets, *found.spilled]) == sorted(t.name for t in tensors)
    placed = [(found.offsets[t.name], t) for t in tensors if t.name in found.offsets]
    assert all(at >= 0 and at + t.size <= capacity for at, t in placed)
    for k, (a, one) in enumerate(placed):
        for b, other in placed[:k]:
            together = one.first <= other.last and other.first <= one.last
            assert not together or a + one.size <= b or b + other.size <= a


def test_what_is_dead_makes_room() -> None:
    found = allocate([Lifetime("a", 8, 0, 1), Lifetime("b", 8, 2, 3), Lifetime("c", 8, 4, 4)], 8)
    assert found.offsets == {"a": 0, "b": 0, "c": 0} and not found.spilled


def test_the_paper_spills_what_lives_longest() -> None:
    """Figure 12: out1 lives across seven tasks, and leaves when a fourth tensor needs room."""
    tensors = [
        Lifetime("out1", 10, 0, 6),
        Lifetime("out4", 20, 3, 5),
        Lifetime("out5", 10, 4, 6),
        Lifetime("out6", 10, 5, 6),
    ]
    assert allocate(tensors, 40).spilled == ("out1",)
    assert allocate(tensors, 40, LARGEST).spilled == ("out4",)


def test_what_exceeds_the_buffer_leaves_it() -> None:
    """And no other for its sake."""
    found = allocate([Lifetime("small", 4, 0, 5), Lifetime("huge", 100, 1, 1)], 8)
    assert found.spilled == ("huge",) and found.offsets == {"small": 0}


@settings(max_examples=200)
@given(TENSORS, st.integers(1, 90))
def test_a_place_a_task_earlier_costs_nobody_his(wanted: list[tuple[int, int, int]], capacity: int) -> None:
    tensors = [Lifetime(f"t{k}", size, first, first + life) for k, (size, first, life) in enumerate(wanted)]
    exact, found = allocate(tensors, capacity), allocate(tensors, capacity, early=True)
    assert set(found.spilled) <= set(exact.spilled) and found.early <= found.offsets.keys()
    placed = [
        (found.offsets[t.name], t.earlier if t.name in found.early else t) for t in tensors if t.name in found.offsets
    ]
    for k, (a, one) in enumerate(placed):
        for b, other in placed[:k]:
            together = one.first <= other.last and other.first <= one.last
            assert not together or a + one.size <= b or b + other.size <= a


def test_where_there_is_room_a_place_is_free_earlier() -> None:
    tensors = [Lifetime("a", 8, 0, 1), Lifetime("b", 8, 2, 3), Lifetime("c", 8, 4, 4)]
    assert allocate(tensors, 16, early=True).early == {"a", "b", "c"}
    assert allocate(tensors, 8, early=True).early == {"a"}  # nothing runs before it
