"""Rows in their own process, a line of JSON each (``python -m benchmarks.world.worker STAGE SECONDS LABEL:MODE``)."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from benchmarks.world import capturing, rightness, speed
from benchmarks.world.capturing import first_line
from benchmarks.world.catalogue import Row, rows
from benchmarks.world.environments import passing_over


def _captured(row: Row, training: bool, _: float) -> dict[str, Any]:
    program = rightness.built(row)
    program.networks.train(training)
    return capturing.capture(program, training)


def _right(row: Row, training: bool, _: float) -> dict[str, Any]:
    return rightness.compare(row, training)


def _peer(row: Row, training: bool, _: float) -> dict[str, Any]:
    return speed.peer(row, training)


STAGES: dict[str, Callable[[Row, bool, float], dict[str, Any]]] = {
    "capture": _captured,
    "speed": speed.measure,
    "right": _right,
    "peer": _peer,
}
"""Stage -> what it finds, for a row, whether in training, and seconds per contender; in the order in which they run, so
that first steps are measured with empty caches."""


def main(stage: str, seconds: str, *jobs: str) -> None:
    """Print what the stage finds for each job, or its ``failure``."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    for job in jobs:
        label, _, mode = job.rpartition(":")
        with redirect_stdout(sys.stderr):
            found = _found(rows()[label], mode == "training", stage, float(seconds))
        print(json.dumps(found), flush=True)


def _found(row: Row, training: bool, stage: str, seconds: float) -> dict[str, Any]:
    try:
        if row.environment == "vision":
            passing_over("torchvision::")
        found = STAGES[stage](row, training, seconds)
    except Exception as error:
        return {"failure": first_line(error), "traceback": "".join(traceback.format_exception(error)[-12:])}
    return {**found, "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


if __name__ == "__main__":
    main(*sys.argv[1:])
