"""Random small problems for tests of the search."""

from __future__ import annotations

from hypothesis import strategies as st

from daceopt.distributed.search.allreduce_time import AllReduceTime, LinearTime
from daceopt.distributed.search.fusion_state import METHODS, FusionProblem, Move
from daceopt.distributed.search.step_simulator import StepSimulator
from daceopt.distributed.search.training_graph import (
    GradientTensor,
    GroupModel,
    KernelGroup,
    StepOperator,
    TrainingGraph,
)

TIMES = st.integers(0, 50).map(lambda k: k / 8)  # sums of eighths are exact
LINES = st.none() | st.builds(LinearTime, TIMES.map(lambda k: k / 8), TIMES)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12) -> TrainingGraph:
    count = draw(st.integers(1, most))
    computations = []
    for k in range(count):
        before = draw(st.sets(st.integers(0, k - 1), max_size=3)) if k else set()
        computations.append(StepOperator(f"c{k}", draw(TIMES), tuple(sorted(before)), draw(st.booleans())))
    producers = draw(st.lists(st.integers(0, count - 1), max_size=8))
    last = max(producers, default=0) + 1  # what needs averages runs behind all that does not
    gradients = []
    for k, p in enumerate(producers):
        behind = draw(st.sets(st.integers(last, count - 1), max_size=2)) if last < count else set()
        gradients.append(GradientTensor(f"g{k}", draw(st.integers(0, 64)), p, behind=tuple(sorted(behind))))
    return TrainingGraph(tuple(computations), tuple(gradients))


def model_of(graph: TrainingGraph, most: int = 5) -> GroupModel:
    """Up to ``most`` members, whose kernel saves an eighth of their time for each but one."""

    def why_not(first: KernelGroup, second: KernelGroup, copied: bool) -> str | None:
        return "too many" if len(first.members) + len(second.members) > most else None

    def seconds(group: KernelGroup) -> float:
        total = sum(graph.computations[k].seconds for k in group.members)
        return total * (1 - (len(group.members) - 1) / 8)

    return GroupModel(why_not, seconds)


@st.composite
def problems(draw: st.DrawFn, most: int = 12) -> FusionProblem:
    graph = draw(graphs(most))
    reduction = AllReduceTime(draw(st.integers(1, 4)), draw(TIMES) / 8, draw(TIMES), draw(LINES), draw(LINES))
    slowdowns = tuple(draw(st.lists(st.sampled_from((1.0, 1.5, 2.0)), min_size=1, max_size=3)))
    return FusionProblem(graph, model_of(graph), reduction, StepSimulator(slowdowns))


@st.composite
def moves(draw: st.DrawFn, graph: TrainingGraph) -> list[Move]:
    found = []
    for _ in range(draw(st.integers(0, 12))):
        method = draw(st.sampled_from(METHODS))
        count = len(graph.gradients) if method == "combine" else len(graph.computations)
        if count:
            found.append(Move(method, draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))))
    return found
