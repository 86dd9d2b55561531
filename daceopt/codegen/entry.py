"""The C++ source that stands between the flat call of ``Executable.run`` and the program that DaCe generated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daceopt.errors import BuildError
from daceopt.ir.scalar import checks
from daceopt.runtime.executable import ABI_VERSION, BAD_INDEX, CHANGED, EARLIER, FAILED, HOST_FAILED, OK
from daceopt.runtime.manifest import Manifest

if TYPE_CHECKING:
    import dace

HOST_DECLARATION = "void daceopt_host_call(int64_t id, void** pointers);"
"""What a frame declares to call a Python function: it throws when that function raised."""

_SOURCES = (
    "input",
    "constant",
    "output",
    "lent",
    "saved",
    "arena",
    "seed",
    "stream",
    "status",
    "reports",
    "seen",
    "symbol",
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*( (int|long|char|short))*")
_EXPRESSION = re.compile(r"[A-Za-z0-9_+\-*/%()<>=!?:&|, ]+")
_FUNCTIONS = frozenset({"INT64_C", "int64_t", "std", "min", "max", "int_floor", "int_ceil"})


@dataclass(frozen=True)
class FrameParameter:
    """A parameter of the generated program: its name, C++ element type, and whether it is a pointer."""

    name: str
    ctype: str
    pointer: bool


@dataclass(frozen=True)
class Argument:
    """What a call passes for a parameter.

    ``source``: ``input``, ``constant`` or ``output`` (the ``index``-th), ``lent`` (memory of the ``index``-th output),
    ``saved`` or ``arena`` (these three plus ``offset`` bytes, an expression), ``seed``, ``stream``, ``status`` (where
    kernels report what they check), ``reports`` (the same where nobody waits for them), ``seen`` (the ``index``-th
    number of the host that is read of a device), or ``symbol`` (the ``index``-th).
    """

    source: str
    index: int = 0
    offset: str = "0"


@dataclass(frozen=True)
class FrameProgram:
    """A generated program and how to call it; sizes are C++ expressions of type int64_t over the manifest's symbols.

    ``init`` names the symbols that DaCe's initialisation takes. ``status_header`` says that library calls report into
    ``daceopt/status.h``. ``suffix`` ends the names of the exported functions, where one library has many programs.
    """

    name: str
    parameters: tuple[FrameParameter, ...]
    arguments: tuple[Argument, ...]
    init: tuple[str, ...] = ()
    arena: str = "0"
    saved: str = "0"
    shapes: tuple[tuple[str, ...], ...] = ()
    status_header: bool = False
    suffix: str = ""


def signature(sdfg: dace.SDFG) -> tuple[tuple[FrameParameter, ...], tuple[str, ...]]:
    """Return the parameters of the program that DaCe generates for ``sdfg``, in call order, and those of its init."""
    from dace import data

    listed = sdfg.arglist()
    parameters = tuple(
        FrameParameter(name, desc.dtype.base_type.ctype, not isinstance(desc, data.Scalar))
        for name, desc in listed.items()
    )
    init = [name.strip() for name in sdfg.init_signature(for_call=True).split(",")]
    return parameters, tuple(name for name in init if name)


def entry_source(program: FrameProgram, manifest: Manifest) -> str:
    """Return the source of the library's exported functions: run, sizes, error, results, ABI version, host callback.

    Raises BuildError for a name, type or expression that is not plain C++, and where the program writes other results
    than the manifest says.
    """
    symbols = [symbol.name for symbol in manifest.symbols]
    _check_names(program, symbols)
    _check_outputs(program, manifest)
    kernels_report = any(a.source == "reports" for a in program.arguments)
    reports = manifest.has_stream and (kernels_report or program.status_header)  # library calls may do so, too
    return _TEMPLATE.format(
        reports_declaration=_REPORTS if reports else "",
        reported=_reported() if reports else "",
        earlier=EARLIER,
        seen=1 + max((a.index for a in program.arguments if a.source == "seen"), default=0),
        status_include='#include "daceopt/status.h"' if program.status_header else "",
        clear="daceopt::clear_status();" if program.status_header else "",
        library_failed=_LIBRARY_CHECK if program.status_header else "",
        attempt=_ATTEMPT if program.status_header else "program();",
        at_end="if (daceopt::at_end) daceopt::at_end();" if program.status_header else "",
        abi=ABI_VERSION,
        ok=OK,
        failed=FAILED,
        bad_index=BAD_INDEX,
        index=checks.INDEX,
        checks=_checks(FAILED),
        host_failed=HOST_FAILED,
        changing=checks.CHANGING,
        changed=CHANGED,
        name=program.name,
        suffix=program.suffix,
        outputs=manifest.results,
        init_types=", ".join("int64_t" for _ in program.init),
        init_values=", ".join(program.init),
        types="".join(f", {_ctype(p)}" for p in program.parameters),
        values="".join(f",\n            {_value(p, a, manifest)}" for p, a in _pairs(program)),
        symbols="\n".join(_symbol(i, name) for i, name in enumerate(symbols)),
        sizes="\n".join(f"    out[{i}] = {_expression(text, symbols)};" for i, text in enumerate(_sizes(program))),
    )


def _reported() -> str:
    return _REPORTED.format(index=checks.INDEX, checks=_checks("failed"))


def _checks(code: int | str) -> str:
    return "".join(_CHECK.format(kind=k, code=code, message=m) for k, m in checks.MESSAGES.items())


def _pairs(program: FrameProgram) -> list[tuple[FrameParameter, Argument]]:
    if len(program.parameters) != len(program.arguments):
        raise BuildError(
            f"{program.name} takes {[p.name for p in program.parameters]}; got {len(program.arguments)} arguments"
        )
    return list(zip(program.parameters, program.arguments, strict=True))


def _sizes(program: FrameProgram) -> list[str]:
    return [program.arena, program.saved, *(extent for shape in program.shapes for extent in shape)]


def _symbol(position: int, name: str) -> str:
    return f"    [[maybe_unused]] const int64_t {name} = symbols[{position}];"


def _ctype(parameter: FrameParameter) -> str:
    return f"{parameter.ctype}*" if parameter.pointer else parameter.ctype


def _value(parameter: FrameParameter, argument: Argument, manifest: Manifest) -> str:
    """Return the C++ expression of one argument of the call."""
    symbols = [symbol.name for symbol in manifest.symbols]
    if argument.source == "symbol":
        return f"static_cast<{parameter.ctype}>({symbols[argument.index]})"
    if argument.source == "reports":
        return "daceopt_reports()"
    if argument.source == "status":
        return f"reinterpret_cast<{parameter.ctype}*>(&status)"
    if argument.source == "seen":
        return f"reinterpret_cast<{parameter.ctype}*>(&seen[{argument.index}])"
    address = f"pointers[{_position(argument, manifest)}]"
    if argument.source in ("lent", "saved", "arena"):
        address = f"static_cast<char*>({address}) + ({_expression(argument.offset, symbols)})"
    pointer = f"reinterpret_cast<{parameter.ctype}*>({address})"
    return pointer if parameter.pointer else f"*{pointer}"


def _position(argument: Argument, manifest: Manifest) -> int:
    """Return an argument's place in the pointer list: inputs, constants, outputs, saved block, arena, seed, stream."""
    counts = {
        "input": len(manifest.inputs),
        "constant": len(manifest.constants),
        "output": len(manifest.outputs),
        "saved": 1,
        "arena": 1,
        "seed": 1,
        "stream": int(manifest.has_stream),
    }
    start, wanted = 0, "output" if argument.source == "lent" else argument.source
    for source, count in counts.items():
        if source == wanted:
            if not 0 <= argument.index < count:
                raise BuildError(f"{manifest.name}: {source} {argument.index} is asked for, but there are {count}")
            return start + argument.index
        start += count
    raise BuildError(f"{manifest.name}: an argument comes from one of {_SOURCES}; got {argument.source!r}")


def _check_names(program: FrameProgram, symbols: Sequence[str]) -> None:
    for name in (program.name + program.suffix, *symbols, *program.init):
        if not _IDENTIFIER.fullmatch(name):
            raise BuildError(f"{name!r} is not a C++ identifier")
    for parameter in program.parameters:
        if not _TYPE.fullmatch(parameter.ctype):
            raise BuildError(f"parameter {parameter.name!r}: {parameter.ctype!r} is not a C++ type")
    unknown = set(program.init) - set(symbols)
    if unknown:
        raise BuildError(
            f"{program.name}: its initialisation takes {sorted(unknown)}; known symbols are {list(symbols)}"
        )


def _check_outputs(program: FrameProgram, manifest: Manifest) -> None:
    from daceopt.ir.scalar import types

    written = {a.index: p.ctype for p, a in _pairs(program) if a.source == "output"}
    for k, tensor in enumerate(manifest.outputs):
        promised = f"{types.bits(types.from_name(tensor.dtype)).ctype} with {tensor.rank} dimensions"
        rank = len(program.shapes[k]) if k < len(program.shapes) else None
        found = f"{written.get(k)} with {rank} dimensions"
        if k in written and found != promised:
            raise BuildError(f"{program.name} writes {tensor.name} as {found}; its manifest says {promised}")


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

_TEMPLATE = """\
#include <daceopt/frame.h>
{status_include}

#define EXPORTED extern "C" __attribute__((visibility("default")))

extern "C" void* __dace_init_{name}({init_types});
extern "C" void __program_{name}(void*{types});
{reports_declaration}

namespace {{

using HostFunction = int (*)(int64_t, void**);
HostFunction host_function = nullptr;
thread_local char message[1024];

struct HostFailed final : std::exception {{
    const char* what() const noexcept override {{ return "a host call failed"; }}
}};

int report(int code, const char* text) {{
    std::snprintf(message, sizeof message, "%s", text);
    return code;
}}

// What kernels of a device have reported since they were last asked, as these codes.
int reported([[maybe_unused]] int failed, [[maybe_unused]] int bad_index) {{{reported}
    return {ok};
}}

int run([[maybe_unused]] void** pointers, [[maybe_unused]] const int64_t* symbols, int64_t& status) {{
{symbols}
    [[maybe_unused]] int64_t seen[{seen}] = {{}};
    static void* const handle = __dace_init_{name}({init_values});
    if (!handle) return report({failed}, "the program could not be initialised");
    {clear}
    if (const int code = reported({earlier}, {earlier}); code != {ok}) return code;
    const auto program = [&] {{ __program_{name}(handle{values}); }};
    {attempt}{library_failed}
    if (status & {index}) return report({bad_index}, "an index is out of range");{checks}
    return {ok};
}}

int caught(void** pointers, const int64_t* symbols, int64_t& status) {{
    try {{
        return run(pointers, symbols, status);
    }} catch (const HostFailed& error) {{
        return report({host_failed}, error.what());
    }} catch (const std::exception& error) {{
        const int code = reported({failed}, {bad_index});  // more than that the host has seen it
        return code != {ok} ? code : report({failed}, error.what());
    }} catch (...) {{
        return report({failed}, "an exception of unknown type");
    }}
}}

}}  // namespace

void daceopt_host_call(int64_t id, void** pointers) {{
    if (!host_function || host_function(id, pointers)) throw HostFailed();
}}

EXPORTED int daceopt_run{suffix}(void** pointers, const int64_t* symbols) {{
    int64_t status = 0;
    const int code = caught(pointers, symbols, status);
    {at_end}
    return code != {ok} && (status & {changing}) ? {changed} : code;
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
EXPORTED void daceopt_set_host{suffix}(HostFunction function) {{ host_function = function; }}
"""
