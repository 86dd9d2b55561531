"""Choose the memory of an accelerator in which each local lives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daceopt.ir.schedule import HARDWARE
from daceopt.transformations.hardware._scheduling import Form, Nest, Scheduling


@dataclass(frozen=True)
class LocalPlacement(Scheduling):
    """Let the threads of a block share a local of which each of them writes a part.

    before:  thread row[512]    for j_chunk: warp for j < 32: row[32*j_chunk + j] = f(x[...])
    after:   shared row[512]    for j_chunk: warp for j < 32: row[32*j_chunk + j] = f(x[...])

    What all threads compute alike, sums across them included, each keeps for itself.
    """

    def decide(self, form: Form) -> Form | None:
        scopes = [
            replace(a, scope="shared") if a.scope == "thread" and self._is_spread(form, a.array) else a
            for a in form.locals
        ]
        return None if scopes == list(form.locals) else replace(form, locals=tuple(scopes))

    @staticmethod
    def _is_spread(form: Form, array: str) -> bool:
        return any(_writes_parts(form, nest, array) for nest in form.nests)


def _writes_parts(form: Form, nest: Nest, array: str) -> bool:
    """Does a thread of the nest write elements that others do not?"""
    threads = {loop.param for loop in nest.loops if loop.kind in HARDWARE}
    writes = (r for body in form.bodies_of(nest) for r in body.writes.values())
    own = [r for r in writes if r.buffer.local and r.buffer.array == array]
    return any(r.params() & threads or (threads and not r.wcr) for r in own)
