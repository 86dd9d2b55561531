"""The driver of edits: what it gives, what it refuses, and that nothing changes before something is put in place."""

from __future__ import annotations

from typing import Any

import pytest

from daceopt.errors import IllegalSchedule, Unsupported
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import Edit, after_those_that_are_legal, attempt, commit, exchange
from daceopt.ir.edits.kernel_edits import stage_reads
from daceopt.ir.edits.loops import KernelLoops, loops_of
from daceopt.ir.schedule.schedule import default
from daceopt.ir.schedule.schedule_text import text
from tests.ir.edits.test_schedule_edits import copy, total, two_stages


def _in_threads(loops: KernelLoops) -> Any:
    return edits.bind(loops.tree, "i0", "parallel")


def _fused(loops: KernelLoops) -> Any:
    return edits.fuse_loops(loops.tree, "i1")


def test_an_edit_changes_nothing_before_it_is_put_in_place() -> None:
    graph, node = total()
    before = node.kernel
    after = attempt(loops_of(graph, node), lambda loops: edits.bind(loops.tree, "i1", "parallel"))
    assert isinstance(after, KernelLoops) and node.kernel is before
    assert exchange(graph, node, after) is node
    assert text(after.tree) == "for i0 < 64:\n  parallel for i1 < 70:\n    s0(i0, i1)\n"
    assert "accumulate private s0.out0:\n    parallel for i1" in text(node.tree)
    assert loops_of(graph, node) is after


def test_another_kernel_takes_the_place_of_the_node() -> None:
    graph, node = copy()
    after = attempt(loops_of(graph, node), lambda loops: stage_reads(graph, loops.kernel, graph.inputs[0], "i0"))
    assert isinstance(after, KernelLoops)
    new = exchange(graph, node, after)
    assert graph.kernels() == [new] and len(new.kernel.stages) == 2
    graph.validate()


_WITHOUT_RESULT: dict[str, tuple[Edit, str | None]] = {
    "nothing to do": (lambda loops: None, None),
    "the same loops": (lambda loops: loops.tree, None),
    "a text": (lambda loops: "why not", "why not"),
    "no such loop": (lambda loops: edits.unroll(loops.tree, "i9"), "there is no loop over i9"),
    "what is not finished is read": (_fused, "schedule of pair: "),
}


@pytest.mark.parametrize("name", list(_WITHOUT_RESULT))
def test_an_edit_without_result_says_why(name: str) -> None:
    edit, expected = _WITHOUT_RESULT[name]
    graph, node = two_stages(reduced=True)
    result = attempt(loops_of(graph, node), edit)
    assert result is None if expected is None else expected in str(result)
    assert node.tree is None


def test_what_is_not_supported_is_a_reason() -> None:
    graph, node = two_stages()
    commit(graph, node, edits.split(loops_of(graph, node).tree, "i0", 3))
    assert attempt(loops_of(graph, node), lambda loops: loops.with_nests(loops.nests)) is None

    def refuse(loops: KernelLoops) -> None:
        raise Unsupported("of another kind")

    assert attempt(loops_of(graph, node), refuse) == "of another kind"


def test_what_is_illegal_is_left_out_of_several() -> None:
    graph, node = two_stages(reduced=True)
    before = loops_of(graph, node)
    after = after_those_that_are_legal(before, [_fused, _in_threads])
    assert after.tree == _in_threads(before)
    assert after_those_that_are_legal(before, [_fused]) is before


def test_commit_raises() -> None:
    graph, node = two_stages(reduced=True)
    with pytest.raises(IllegalSchedule, match="schedule of pair: "):
        commit(graph, node, _fused(loops_of(graph, node)))
    assert node.tree is None


def test_what_is_committed_may_have_its_accumulators() -> None:
    """The steps after it find the usual form, without them."""
    graph, node = two_stages(reduced=True)
    nests = loops_of(graph, node).nests
    commit(graph, node, default(node.kernel))
    assert "accumulate" in text(node.tree)
    assert loops_of(graph, node).nests == nests


def test_loops_are_read_anew_when_the_kernel_changes_and_in_copies() -> None:
    graph, node = two_stages()
    first = loops_of(graph, node)
    assert loops_of(graph, node) is first and not first.is_scheduled
    node.kernel = first.placed
    assert loops_of(graph, node) is not first and loops_of(graph, node).is_scheduled
    other = graph.copy()
    (twin,) = other.kernels()
    assert loops_of(other, twin).graph is other


def test_the_usual_form() -> None:
    loops = loops_of(*two_stages())
    assert [str(loop.param) for loop in loops.shared] == ["i0"] and len(loops.nests) == 2 and len(loops.locals) == 1
    assert loops.with_nests(loops.nests) == loops.tree and loops.single is None
    fused = loops.on(edits.fuse_loops(edits.split(loops.tree, "i1", 8), "i1_block"))
    with pytest.raises(Unsupported, match="given by hand"):
        _ = fused.nests
