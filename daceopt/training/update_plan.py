"""What the program of a training step does with its gradients, as plain data: a warm start reads it, too."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 9
"""Coefficients of a row: those of the rule (see ``optimizers``), and in the last column the bound for clipping."""


@dataclass(frozen=True)
class Updated:
    """One parameter of a step.

    ``argument``: its position among the arguments of the graph; ``dtype``: in which its update is computed, float32 or
    float64; the parameter and its state may be stored in a half type, and are rounded once; ``rule`` and ``flags``:
    how it is updated (``optimizers.RULES``); ``state``: the optimizer's tensors for it; ``row``: of its coefficients;
    ``accumulated``: whether gradients of earlier micro-batches are added to its own; ``waiting``: whether they are all
    that it has; ``shard``: how many of its elements each rank updates, whose state alone it has; 0 for all of them.
    """

    argument: int
    dtype: str
    rule: str
    flags: tuple[str, ...]
    state: tuple[str, ...]
    row: int
    accumulated: bool
    shard: int = 0
    waiting: bool = False


@dataclass(frozen=True)
class UpdatePlan:
    """``rows`` of coefficients; ``clip``: None, "norm" or "value"; ``seed``: the gradient of the loss; ``updates``:
    False where gradients are only collected; ``keeps``: whether gradients are results.

    More inputs of the program, in this order: of each parameter its states, then the accumulated gradient; then the
    coefficients as an array (rows, COLUMNS) of each of ``dtypes``. More outputs: of each parameter its new value and
    states (where it ``updates``), then its gradient (where gradients are kept or collected).
    """

    parameters: tuple[Updated, ...]
    rows: int
    clip: str | None = None
    seed: float = 1.0
    updates: bool = True
    keeps: bool = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types of the coefficients, float64 among them for a norm; none where nothing is updated."""
        wide = {"float64"} if self.clip == "norm" else set()
        return tuple(sorted({p.dtype for p in self.parameters} | wide)) if self.updates else ()

    def states(self, parameter: Updated) -> tuple[str, ...]:
        """What of a parameter's state is read and written."""
        return parameter.state if self.updates else ()

    @property
    def returns_gradients(self) -> bool:
        return self.keeps or not self.updates
