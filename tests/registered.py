"""Tables that user code adds to, put back as they were after a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def restored() -> Iterator[None]:
    """Forget, at the end, the operators, rules, targets, libraries and transformations registered meanwhile."""
    from daceopt.autodiff import rules
    from daceopt.capture.torch import table as aten
    from daceopt.codegen import target, toolchain
    from daceopt.libs import base
    from daceopt.ops.core import registry as operators
    from daceopt.passes import recipe, transform

    rules._lookup({}, None)  # the built-in rules load on first use: before the tables are noted, not meanwhile
    aten._load()

    tables: tuple[dict, ...] = (
        operators._LOWERINGS,
        operators._TYPES,
        operators._CHECKS,
        operators._GRADIENTS,
        rules._RULES,
        aten._RULES,
        target._TARGETS,
        toolchain._TOOLCHAINS,
        base._LIBRARIES,
        base.PREFERENCE,
        transform.transformations._loaded,
        recipe.recipes._loaded,
    )
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            table.clear()
            table.update(content)
