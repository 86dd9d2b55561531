"""Keep locals that live within one iteration in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from daceopt.ir.access.references import Reference, same_element
from daceopt.ir.edits.loops import KernelLoops
from daceopt.ir.schedule.schedule import Tree
from daceopt.transformations.hardware._scheduling import KernelStep


@dataclass(frozen=True)
class RegisterPromotion(KernelStep):
    """Give a local the scope ``register`` where every read is of the element that the same iteration has written.

    before:  thread t[256]    for j < 256: { t[j] = f(x[j]);  y[j] = g(t[j]) }
    after:   register t       for j < 256: { t = f(x[j]);  y[j] = g(t) }
    """

    def edit(self, form: KernelLoops) -> Tree | None:
        scopes = [replace(a, scope="register" if _stays(form, a.array) else a.scope) for a in form.locals]
        return None if scopes == list(form.locals) else form.with_locals(scopes)


def _stays(form: KernelLoops, array: str) -> bool:
    users = [nest for nest in form.nests if any(_is(r, array) for b in form.bodies_of(nest) for r in b.references())]
    if len(users) != 1:
        return False
    bodies = form.bodies_of(users[0])
    writes = [r for b in bodies for r in b.writes.values() if _is(r, array)]
    reads = [r for b in bodies for r in b.reads.values() if _is(r, array)]
    return len(writes) == 1 and not writes[0].wcr and all(same_element(writes[0], r) for r in reads)


def _is(reference: Reference, array: str) -> bool:
    return reference.buffer.local and reference.buffer.array == array
