"""The recipe ``auto``: ``cpu``, ``apollo`` or ``graphturbo``, whichever the cost model says is faster for the program.

It says what it chose, by which times, and which other recipes ``tune`` would measure: with ``tune`` programs of all
are, beside eager PyTorch, and what was the fastest is remembered (``daceopt/programs/tuning``). Where tensors are on
a CUDA device it is ``gpu``, with the edits that were made of it; edit ``recipes.get("gpu")`` at steps that only it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.passes.choice import SHARE, Candidate, Choice
from daceopt.recipes.apollo import apollo
from daceopt.recipes.cpu import cpu
from daceopt.recipes.graphturbo import graphturbo
from daceopt.recipes.inference import inference
from daceopt.recipes.training import training

if TYPE_CHECKING:
    from daceopt.cost.program_time import ProgramTime


def _way_to_memory(first: ProgramTime) -> float:
    return first.far


def _share(first: ProgramTime) -> float:
    """Running depth first saves in library calls as well."""
    return SHARE * first.total


auto = Choice.of(
    "auto",
    cpu,
    apollo,
    # in training nothing was gained where the model said so
    Candidate(graphturbo, _way_to_memory, _share, trains=False),
    # micro-kernels and larger products: by how much they are faster is a matter of the machine's libraries
    Candidate(inference, trains=False, modelled=False),
    Candidate(training, infers=False, modelled=False),
)
