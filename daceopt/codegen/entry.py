"""The C++ source of a program: its frame, and around it what ``Executable.run`` calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daceopt.errors import BuildError
from daceopt.ir.scalar import checks
from daceopt.runtime.executable import ABI_VERSION, BAD_INDEX, CHANGED, EARLIER, FAILED, OK
from daceopt.runtime.manifest import Manifest

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPRESSION = re.compile(r"[A-Za-z0-9_+\-*/%()<>=!?:&|, ]+")
_CODES = {
    "abi": ABI_VERSION,
    "ok": OK,
    "failed": FAILED,
    "bad_index": BAD_INDEX,
    "changed": CHANGED,
    "earlier": EARLIER,
    "index": checks.INDEX,
    "changing": checks.CHANGING,
}
_FUNCTIONS = frozenset({"INT64_C", "int64_t", "std", "min", "max", "int_floor", "int_ceil"})


@dataclass(frozen=True)
class BufferAddress:
    """Where a buffer is.

    ``source``: ``input``, ``constant`` or ``output`` (the ``index``-th), ``lent`` (memory of the ``index``-th output),
    ``saved`` or ``arena`` (these three plus ``offset`` bytes, an expression), ``seed``, ``stream``, ``status`` (where
    kernels report what they check), ``reports`` (the same where nobody waits for them), or ``seen`` (the ``index``-th
    number of the host that is read of a device).
    """

    source: str
    index: int = 0
    offset: str = "0"


@dataclass(frozen=True)
class ProgramSource:
    """``body``: C++ statements over ``buffers`` (name -> C++ type of an element, and where it is) and the symbols
    of the manifest, which call what ``declarations`` declare.

    ``body`` may call ``mark`` with the number of the node that comes next, where it is not null.
    ``arena``, ``saved`` (bytes) and ``shapes`` (of the outputs) are C++ expressions of type int64_t over the symbols.
    ``status_header`` says that library calls report into ``daceopt/status.h``. ``suffix`` ends the names of the
    exported functions, where one library has many programs.
    """

    manifest: Manifest
    body: str
    buffers: Mapping[str, tuple[str, BufferAddress]] = field(default_factory=dict)
    declarations: str = ""
    arena: str = "0"
    saved: str = "0"
    shapes: tuple[tuple[str, ...], ...] = ()
    status_header: bool = False
    suffix: str = ""

    @property
    def frame(self) -> str:
        """What people read: declarations and calls."""
        return f"{self.declarations}\n\n{self.body}\n"

    def text(self) -> str:
        """The whole translation unit, with the library's exported functions: run, sizes, error, results, ABI version.

        Raises BuildError for a name or expression that is not plain C++, and for buffers that a call does not pass.
        """
        symbols = [symbol.name for symbol in self.manifest.symbols]
        for name in (f"run{self.suffix}", *symbols, *self.buffers):
            if not _IDENTIFIER.fullmatch(name):
                raise BuildError(f"{name!r} is not a C++ identifier")
        return _TEMPLATE.format(
            **_CODES,
            **self._frame_parts(symbols),
            **self._reporting_parts(),
            suffix=self.suffix,
            timed=self._timed_run(),
            outputs=self.manifest.results,
            symbols="\n".join(_symbol(i, name) for i, name in enumerate(symbols)),
            sizes="\n".join(f"    out[{i}] = {_expression(text, symbols)};" for i, text in enumerate(self._sizes())),
        )

    def _frame_parts(self, symbols: Sequence[str]) -> dict[str, object]:
        """The function of the calls, and what is passed to it."""
        pointers = [f"{ctype}* {name}" for name, (ctype, _) in self.buffers.items()]
        values = [*map(self._argument, self.buffers), *symbols]
        indices = (address.index for _, address in self.buffers.values() if address.source == "seen")
        return {
            "declarations": self.declarations,
            "body": _indent(self.body),
            "parameters": "".join(f"{p}, " for p in (*pointers, *(f"int64_t {name}" for name in symbols))),
            "arguments": "".join(f"\n            {value}," for value in values),
            "seen": 1 + max(indices, default=0),
        }

    def _reporting_parts(self) -> dict[str, str]:
        """How errors of kernels and of library calls are told."""
        kernels_report = any(address.source == "reports" for _, address in self.buffers.values())
        reports = self.manifest.has_stream and (kernels_report or self.status_header)  # library calls may do so, too
        shared = self.status_header
        return {
            "reports_declaration": _REPORTS if reports else "",
            "reported": _REPORTED.format(index=checks.INDEX, checks=_checks("failed")) if reports else "",
            "checks": _checks(FAILED),
            "status_include": '#include "daceopt/status.h"' if shared else "",
            "clear": "daceopt::clear_status();" if shared else "",
            "library_failed": _LIBRARY_CHECK if shared else "",
            "attempt": _ATTEMPT if shared else "program();",
            "at_end": "if (daceopt::at_end) daceopt::at_end();" if shared else "",
        }

    def _timed_run(self) -> str:
        """The times of a run: by events of the device, where the host does not wait for its kernels."""
        if not self.manifest.has_stream:
            return _TIMED.format(suffix=self.suffix)
        return _TIMED_ON_DEVICE.format(**_CODES, suffix=self.suffix, stream=self._address(BufferAddress("stream")))

    def _sizes(self) -> list[str]:
        return [self.arena, self.saved, *(extent for shape in self.shapes for extent in shape)]

    def _argument(self, name: str) -> str:
        ctype, address = self.buffers[name]
        return f"reinterpret_cast<{ctype}*>({self._address(address)})"

    def _address(self, address: BufferAddress) -> str:
        if address.source == "reports":
            return "daceopt_reports()"
        if address.source == "status":
            return "&status"
        if address.source == "seen":
            return f"&seen[{address.index}]"
        pointer = f"pointers[{_position(address, self.manifest)}]"
        if address.source in ("lent", "saved", "arena"):
            symbols = [symbol.name for symbol in self.manifest.symbols]
            return f"static_cast<char*>({pointer}) + ({_expression(address.offset, symbols)})"
        return pointer


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else line for line in text.splitlines())


def _checks(code: int | str) -> str:
    return "".join(_CHECK.format(kind=k, code=code, message=m) for k, m in checks.MESSAGES.items())


def _symbol(position: int, name: str) -> str:
    return f"    [[maybe_unused]] const int64_t {name} = symbols[{position}];"


def _position(address: BufferAddress, manifest: Manifest) -> int:
    """A buffer's place in the pointers of a call: inputs, constants, outputs, saved block, arena, seed, stream."""
    counts = {
        "input": len(manifest.inputs),
        "constant": len(manifest.constants),
        "output": len(manifest.outputs),
        "saved": 1,
        "arena": 1,
        "seed": 1,
        "stream": int(manifest.has_stream),
    }
    start, section = 0, "output" if address.source == "lent" else address.source
    for source, count in counts.items():
        if source == section:
            if not 0 <= address.index < count:
                raise BuildError(f"{manifest.name}: {source} {address.index} is read, but a call passes {count}")
            return start + address.index
        start += count
    raise BuildError(f"{manifest.name}: a buffer stands in one of {', '.join(counts)}; got {address.source!r}")


def _expression(text: str, symbols: Sequence[str]) -> str:
    """Return ``text`` if it is an integer expression over the symbols and nothing else."""
    unknown = set(_IDENTIFIER.findall(text)) - set(symbols) - _FUNCTIONS
    if unknown or not _EXPRESSION.fullmatch(text):
        raise BuildError(f"the size {text!r} is not an integer expression over the symbols {list(symbols)}")
    return text


_LIBRARY_CHECK = f"""
    if (daceopt::status.failed)
        return report(daceopt::status.index ? {BAD_INDEX} : {FAILED}, daceopt::status.message);"""

_ATTEMPT = """{
        const daceopt::Careless careless;
        program();
    }
    if (daceopt::status.doubt) {
        daceopt::clear_status();
        status = 0;
        program();
    }"""

_CHECK = """
    if (status & {kind}) return report({code}, "{message}");"""

_REPORTS = 'extern "C" int32_t* daceopt_reports();'

_REPORTED = """
    const int32_t status = __atomic_exchange_n(daceopt_reports(), 0, __ATOMIC_RELAXED);
    if (status & {index}) return report(bad_index, "an index is out of range");{checks}
    if (status) return report(failed, "a kernel failed");"""

_TIMED = """\
    static thread_local int64_t* now;
    now = times;
    return daceopt_run_marked{suffix}(pointers, symbols, [](int64_t node) {{ now[node] = daceopt_now(); }});"""

_TIMED_ON_DEVICE = """\
    static thread_local void* stream;
    stream = {stream};
    const int code = daceopt_run_marked{suffix}(pointers, symbols, [](int64_t node) {{ daceopt_tick(stream, node); }});
    if (code != {ok}) return code;
    try {{
        daceopt_ticks(times);
    }} catch (const std::exception& error) {{
        return report({failed}, error.what());
    }}
    return {ok};"""

_TEMPLATE = """\
#include <daceopt/frame.h>
{status_include}

#define EXPORTED extern "C" __attribute__((visibility("default")))

{declarations}
{reports_declaration}

namespace {{

void frame({parameters}[[maybe_unused]] const daceopt_mark mark) {{
{body}
}}

thread_local char message[1024];

int report(int code, const char* text) {{
    std::snprintf(message, sizeof message, "%s", text);
    return code;
}}

// What kernels of a device have reported since they were last asked, as these codes.
int reported([[maybe_unused]] int failed, [[maybe_unused]] int bad_index) {{{reported}
    return {ok};
}}

int run(
    [[maybe_unused]] void** pointers, [[maybe_unused]] const int64_t* symbols, daceopt_mark mark, int64_t& status) {{
{symbols}
    [[maybe_unused]] int64_t seen[{seen}] = {{}};
    {clear}
    if (const int code = reported({earlier}, {earlier}); code != {ok}) return code;
    const auto program = [&] {{
        frame({arguments} mark);
    }};
    {attempt}{library_failed}
    if (status & {index}) return report({bad_index}, "an index is out of range");{checks}
    return {ok};
}}

int caught(void** pointers, const int64_t* symbols, daceopt_mark mark, int64_t& status) {{
    try {{
        return run(pointers, symbols, mark, status);
    }} catch (const std::exception& error) {{
        const int code = reported({failed}, {bad_index});  // more than that the host has seen it
        return code != {ok} ? code : report({failed}, error.what());
    }} catch (...) {{
        return report({failed}, "an exception of unknown type");
    }}
}}

}}  // namespace

EXPORTED int daceopt_run_marked{suffix}(void** pointers, const int64_t* symbols, daceopt_mark mark) {{
    int64_t status = 0;
    const int code = caught(pointers, symbols, mark, status);
    {at_end}
    return code != {ok} && (status & {changing}) ? {changed} : code;
}}

EXPORTED int daceopt_run{suffix}(void** pointers, const int64_t* symbols) {{
    return daceopt_run_marked{suffix}(pointers, symbols, nullptr);
}}

EXPORTED int daceopt_run_timed{suffix}(void** pointers, const int64_t* symbols, int64_t* times) {{
{timed}
}}

EXPORTED int daceopt_earlier{suffix}() {{
    try {{
        return reported({earlier}, {earlier});
    }} catch (const std::exception& error) {{
        return report({failed}, error.what());
    }}
}}

EXPORTED void daceopt_sizes{suffix}([[maybe_unused]] const int64_t* symbols, int64_t* out) {{
{symbols}
{sizes}
}}

EXPORTED const char* daceopt_error{suffix}() {{ return message; }}
EXPORTED const char* daceopt_outputs{suffix}() {{ return "{outputs}"; }}
EXPORTED int daceopt_abi_version{suffix}() {{ return {abi}; }}
"""
