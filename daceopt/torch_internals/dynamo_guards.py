"""Guards of TorchDynamo: what has to hold of a call for which it has a program."""

from __future__ import annotations

from typing import Any

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._C._dynamo.guards import DictGuardManager as DictGuardManager
    from torch._dynamo.guards import GuardBuilder as GuardBuilder
    from torch._dynamo.guards import _get_closure_vars
    from torch._dynamo.source import AttrSource as AttrSource
    from torch._dynamo.source import GlobalStateSource as GlobalStateSource
    from torch._dynamo.source import LocalSource as LocalSource
    from torch._guards import ChainedSource as ChainedSource
    from torch._guards import Guard as Guard
    from torch._guards import GuardSource, TracingContext
    from torch._guards import Source as Source

    KEYS_OF_DICTIONARY: str = GuardBuilder.DICT_KEYS_MATCH.__name__
    """What a guard of the keys of a dictionary calls itself (``Guard.create_fn_name``)."""


def is_tracing() -> bool:
    """Whether Dynamo, or what it has called, traces in this thread."""
    return TracingContext.try_get() is not None


def is_of_global(source: Source) -> bool:
    """Whether a value is in a global variable."""
    return source.guard_source is GuardSource.GLOBAL


def names_in_guards() -> dict[str, Any]:
    """What the texts of sources name, besides the variables of the frame."""
    return dict(_get_closure_vars())
