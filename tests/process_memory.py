"""What the process holds of the C library's memory."""

from __future__ import annotations

import ctypes
from typing import ClassVar


class _Mallinfo2(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_: ClassVar[list[tuple[str, type]]] = [(name, ctypes.c_size_t) for name in _names.split()]


def bytes_in_use() -> int:
    """Bytes that were asked for and not given back, in the heaps of all threads and mapped."""
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _Mallinfo2
    found = function()
    return int(found.uordblks + found.hblkhd)
