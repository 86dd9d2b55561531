"""How often a call enters code that Dynamo has made: a frame that breaks is many, each with guards of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from daceopt.torch_internals.dynamo_frames import output_codes
from daceopt.torch_internals.frame_evaluation import never_compile


class Entries:
    """Their number."""

    def __init__(self) -> None:
        self.count = 0

    def see(self, frame: FrameType, event: str, argument: object) -> None:
        """Python's interface for profilers."""
        if event == "call" and frame.f_code in output_codes:
            self.count += 1


never_compile(Entries.see.__code__)  # else Dynamo would look at it


@contextmanager
def count_entries() -> Iterator[Entries | None]:
    """Counts those of this thread, which takes some time; None where a profiler has its place."""
    if sys.getprofile() is not None:
        yield None
        return
    entries = Entries()
    sys.setprofile(entries.see)
    try:
        yield entries
    finally:
        sys.setprofile(None)
