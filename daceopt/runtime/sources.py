"""The C++ of a built program, kept beside it: to be read by people, never to be compiled again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from daceopt.errors import BuildError, DaceoptError, did_you_mean
from daceopt.ir.data.provenance import BACKWARD

FILE = "sources.json.gz"


@dataclass(frozen=True)
class Sources:
    """``frame`` calls the kernels one after another; ``units`` has the text of each distinct one by its name.

    ``nodes``: for each of the manifest's kernels the names of its units: one for a loop nest or a library call, one for
    each loop nest inside of a region. ``schedules``: for each of them how its loops run (``schedule_text``), nothing
    for a library call.
    """

    frame: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    nodes: Sequence[Sequence[str]] = ()
    schedules: Sequence[str] = ()

    def of(self, position: int) -> str:
        """The C++ of the kernel at that position in the manifest."""
        return "\n".join(self.units[name] for name in self.nodes[position])

    def whole(self) -> str:
        """Every kernel once, then the frame that calls them."""
        return "\n".join([*self.units.values(), self.frame])

    def to_bytes(self) -> bytes:
        """As compressed JSON, equal for equal sources."""
        return gzip.compress(json.dumps(asdict(self)).encode(), compresslevel=3, mtime=0)

    @staticmethod
    def from_bytes(data: bytes) -> Sources:
        """Read ``to_bytes``; BuildError when it is damaged."""
        try:
            return Sources(**json.loads(gzip.decompress(data)))
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise BuildError(f"the sources of a built program cannot be read: {error}; build it again") from error


def matching(labels: Sequence[str], text: str) -> list[int]:
    """Positions of the labels that contain ``text``, in any case. DaceoptError says what there is instead."""
    positions = [k for k, label in enumerate(labels) if is_called(label, text)]
    if not positions:
        choices = list(dict.fromkeys(labels))
        listed = f"no kernel's label contains {text!r}; there are: {', '.join(choices) or 'none'}"
        raise DaceoptError(listed + did_you_mean(text, choices))
    return positions


def is_called(label: str, text: str) -> bool:
    """Does the label contain ``text``, in any case? ``tanh_backward`` is in ``add__tanh__mul_backward``, too."""
    stem = text.lower().removesuffix(BACKWARD)
    return stem in label.lower() and (stem == text.lower() or label.endswith(BACKWARD))


def heading(label: str, writes: Sequence[str]) -> str:
    """A comment line before a kernel's text."""
    return f"// {label}: {', '.join(writes)}"
