"""``graph.scope``: where arrays live, read from schedules and set in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from daceopt.errors import IllegalSchedule
from daceopt.ir.edits import schedule_edits as edits
from daceopt.ir.edits.attempt import commit
from daceopt.ir.edits.loops import loops_of
from daceopt.ir.graph.graph import Graph
from daceopt.ir.interpreter.interpret import interpret
from daceopt.ir.kernel.kernel import Access, Kernel, param
from daceopt.ir.schedule.schedule import Alloc, walk
from daceopt.ir.text.parse import parse
from daceopt.ir.text.render import render
from tests.ir.edits.test_schedule_edits import two_stages
from tests.ir.guarded import F, V, random_inputs, stage


def rows(columns: int) -> tuple[Graph, Any]:
    """``row[j] = x[i, j] + 1; y[i, j] = 2 * row[j]``."""
    graph = Graph("rows")
    x, y = graph.add_input("x", (8, columns), F), graph.add_array("y", (8, columns), F)
    both = (param(0), param(1))
    stages = [
        stage(both, Access(x, both), Access("row", (param(1),)), V + 1),
        stage(both, Access("row", (param(1),)), Access(y, both), V * 2),
    ]
    entry = graph.add_kernel(
        Kernel("rows", dict(zip(both, (8, columns))), stages, (param(0),), {"row": (F, (columns,))})
    )
    graph.add_output(y)
    return graph, entry


def test_every_array_lives_somewhere() -> None:
    graph, entry = rows(16)
    x, y = graph.inputs[0], graph.outputs[0]
    assert dict(graph.scope) == {x: "global", y: "global", "row": "thread"}
    assert len(graph.scope) == 3 and "row" in graph.scope and "nothing" not in graph.scope
    with pytest.raises(KeyError, match="there is no array nothing"):
        graph.scope["nothing"]
    commit(graph, entry, edits.fuse_loops(loops_of(graph, entry).tree, "i1"))
    graph.scope["row"] = "register"
    assert graph.scope["row"] == "register"
    assert [n.scope for n, _ in walk(entry.tree) if isinstance(n, Alloc)] == ["register"]
    assert parse(render(graph)).scope["row"] == graph.copy().scope["row"] == "register"
    data = random_inputs(graph, {})
    np.testing.assert_allclose(interpret(graph, data)[y], (data[x] + 1) * 2, rtol=1e-6)


def test_arrays_of_the_graph_stay_in_global_memory() -> None:
    graph, _ = rows(16)
    graph.scope[graph.inputs[0]] = "global"
    with pytest.raises(IllegalSchedule, match="x_1 in register: it is an array of the graph"):
        graph.scope[graph.inputs[0]] = "register"
    with pytest.raises(TypeError, match="always lives somewhere"):
        del graph.scope["row"]


def test_a_scope_that_does_not_exist() -> None:
    graph, _ = rows(16)
    with pytest.raises(IllegalSchedule, match="local row in cache; expected one of register, thread, shared"):
        graph.scope["row"] = "cache"
    with pytest.raises(IllegalSchedule, match="local row in global"):
        graph.scope["row"] = "global"
    assert graph.scope["row"] == "thread"


def test_a_dependence_that_forbids_a_register() -> None:
    graph, _ = rows(16)
    with pytest.raises(IllegalSchedule, match="s1 reads row elsewhere than it is written; expected row in thread"):
        graph.scope["row"] = "register"
    assert graph.scope["row"] == "thread"


@pytest.mark.parametrize("columns", [16, 2048, 16384])
def test_what_a_device_has_room_for(columns: int) -> None:
    graph, entry = rows(columns)
    graph.options = replace(graph.options, target="cuda")
    tree = edits.bind(loops_of(graph, entry).tree, "i0", "grid")
    if columns > 1024:
        with pytest.raises(
            IllegalSchedule, match=f"each thread has row, of {4 * columns} bytes; expected at most 4096"
        ):
            commit(graph, entry, tree)
    else:
        commit(graph, entry, tree)
    shared = edits.rescope(edits.bind(edits.split(tree, "i1", 16), "i1", "block"), "row", "shared")
    if columns == 16384:
        with pytest.raises(IllegalSchedule, match="share 65536 bytes; expected at most 49152"):
            commit(graph, entry, shared)
        return
    commit(graph, entry, shared)
    assert graph.scope["row"] == "shared"
    with pytest.raises(IllegalSchedule, match="of 8192 bytes" if columns == 2048 else "has a part of it only"):
        graph.scope["row"] = "thread"
    assert graph.scope["row"] == "shared"


def test_a_shared_local_needs_threads_to_share_it() -> None:
    graph, _ = two_stages()
    with pytest.raises(IllegalSchedule, match="row is shared, but there are no threads of a block to share it"):
        graph.scope["row"] = "shared"
