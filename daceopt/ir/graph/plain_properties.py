"""Objects of DaCe made without the checks of their own classes.

A class with properties sets every default through a checked setter when an object is made, and afterwards looks whether
all are there, which is a third of the time that a graph of thousands of nodes takes. What the setters make of the
defaults is the same each time, so it is copied; what users of an object assign is checked as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dace
from dace.properties import Property

_CHECKED = "initialize_properties"  # what DaCe calls the ``__init__`` that it puts around that of a class


def install() -> None:
    """Do so for all classes of DaCe, and for those of ours that are defined by now."""
    for cls in dict.fromkeys(dace.serialize._DACE_SERIALIZE_TYPES.values()):
        if isinstance(cls, type) and cls.__module__.partition(".")[0] in ("dace", "daceopt"):
            plain(cls)


def plain(cls: type) -> type:
    """Take the checks away from the ``__init__`` of a class with properties; also a decorator."""
    checked: Any = vars(cls).get("__init__")
    if getattr(checked, "__name__", "") != _CHECKED:
        return cls
    enclosed = dict(zip(checked.__code__.co_freevars, (c.cell_contents for c in checked.__closure__)))
    setattr(cls, "__init__", _initializer(enclosed["init"], enclosed["own_properties"]))  # noqa: B010
    return cls


def _initializer(init: Callable[..., None], properties: Mapping[str, Property]) -> Callable[..., None]:
    plain = {n: p for n, p in properties.items() if not p.indirected and (p.allow_none or p.default is not None)}
    stored = {f"_{name}": _stored_default(p) for name, p in plain.items() if _is_plain(p)}
    others = [(name, p) for name, p in plain.items() if not _is_plain(p)]

    def initialize(self: object, *args: object, **kwargs: object) -> None:
        self.__dict__.update(stored)
        for name, prop in others:
            setattr(self, name, prop.default)
        init(self, *args, **kwargs)

    return initialize


def _is_plain(prop: Property) -> bool:
    """Whether the value that is set is kept as it is."""
    return type(prop).__set__ is Property.__set__ and prop.setter is None


def _stored_default(prop: Property) -> Any:
    """What the setter keeps of the default."""
    holder = type("Holder", (), {})()
    prop.__set__(holder, prop.default)
    return getattr(holder, f"_{prop.attr_name}")
