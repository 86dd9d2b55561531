"""Two steps of a program beside float64: our error, and eager PyTorch's; then steps with other sizes."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.checking import Check, distance, disturb, norm
from benchmarks.contenders import Unavailable
from benchmarks.world.capturing import first_line
from benchmarks.world.catalogue import Row
from benchmarks.world.files import OnnxFile, OptimizedFile
from benchmarks.world.program import Prepare, Program, doubled, fixed, flat, in_double, members, prepared, run, widened
from daceopt import optimized_module

SIZES = (1, 2)
_NEGLIGIBLE = 1e-6  # of the largest tensor's norm
_TELLING = 1e-3  # eager's error in float32 up to which a comparison by it says something
_EXACT = 1e-6  # the error of a program of double precision
_BESIDE = 3  # other weights that are tried where float32 shows an error
Tensors = list[torch.Tensor]


def built(row: Row, k: int = 0) -> Program:
    """The program of a row, without dropout; its weights are the same for every size."""
    torch.manual_seed(0)
    program = row.build(k)
    return program._replace(networks=fixed(program.networks))


def ours(network: torch.nn.Module) -> Any:
    """As users write it."""
    if isinstance(network, OnnxFile):
        return OptimizedFile(network)
    return optimized_module(network, fallback="silent")


def inductor(network: torch.nn.Module) -> Any:
    """torch.compile as it is called by default. Raises Unavailable for files."""
    if isinstance(network, OnnxFile):
        raise Unavailable("torch.compile takes no ONNX files")
    return torch.compile(network)


def exact(program: Program, training: bool) -> Tensors:
    """Two steps in double precision; of files, as they are written, without what ONNX Runtime fuses."""
    if isinstance(program.networks, OnnxFile):
        return flat(run(program, program.networks.exact(), training))
    wide = program._replace(inputs=widened(program.inputs))
    with in_double(), _one_thread():
        return flat(run(wide, prepared(program.networks, doubled).train(training), training))


def compare(row: Row, training: bool, prepare: Prepare = ours) -> dict[str, Any]:
    """``right`` (None: not comparable, ``fault`` says why), the largest relative errors, what became of the calls, and
    programs after each further size."""
    program = built(row)
    program.networks.train(training)
    eager = _plain(program, training)
    networks = prepared(program.networks, prepare)
    networks.train(training)
    begun = time.perf_counter()
    first = run(program, networks, training, steps=1)
    seconds = time.perf_counter() - begun
    found = flat([*first, *run(program, networks, training, steps=1)])
    record = {"first step": seconds, **judged(program, training, found, eager, prepare)}
    return record if prepare is not ours else {**record, **counted(networks), "sizes": _sizes(row, networks, training)}


def _plain(program: Program, training: bool) -> Tensors:
    with _one_thread():
        return flat(run(program, prepared(program.networks, lambda m: m).train(training), training))


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch computes in this thread alone. A depthwise convolution of 96 channels in float64 starts its threads for
    each channel: 3.2 s on a busy machine, 0.16 in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def judged(program: Program, training: bool, found: Tensors, eager: Tensors, prepare: Prepare = ours) -> dict[str, Any]:
    """Whether results are right, and how far off they and eager's are."""
    if program.random:
        return {"right": None, "fault": f"not comparable: {program.random}"}
    try:
        reference = exact(program, training)
    except Exception as error:
        reference = [x.double() for x in eager]
        note = f"float64 fails in eager PyTorch ({first_line(error)}): compared with float32"
        return {**_verdict(program, training, found, eager, reference), "note": note}
    verdict = _verdict(program, training, found, eager, reference)
    if verdict["right"] is None or (verdict["right"] and verdict["eager's error"] <= _TELLING):
        return verdict
    if not verdict["right"] and not _right_beside(program, training, prepare):
        return verdict
    return {**verdict, **_in_double(program, training, prepare, reference)}


def _right_beside(program: Program, training: bool, prepare: Prepare) -> bool:
    """Whether float32 shows no error for weights that differ by a hundredth. An error of a program would be there as
    well; a single number that rounding puts on the other side of a kink (relu's zero, hardswish's three) is not."""
    for seed in range(_BESIDE):
        other = _moved(program, seed)
        networks = prepared(other.networks, prepare)
        networks.train(training)
        found = flat(run(other, networks, training))
        if _verdict(other, training, found, _plain(other, training), exact(other, training))["right"]:
            return True
    return False


def _moved(program: Program, seed: int) -> Program:
    networks, noise = copy.deepcopy(program.networks), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in filter(torch.is_floating_point, networks.parameters()):
            parameter.mul_(1 + torch.randn(parameter.shape, generator=noise) / 100)
    return program._replace(networks=networks)


def _in_double(program: Program, training: bool, prepare: Prepare, reference: Tensors) -> dict[str, Any]:
    """The verdict on a program that float32 cannot judge, since eager PyTorch itself is far off (relus that read the
    other side of zero, updates that lead elsewhere), or only for these very weights. In double precision its results
    must be those of the reference."""
    wide = program._replace(inputs=widened(program.inputs))
    try:
        with in_double():
            networks = prepared(program.networks, lambda network: prepare(doubled(network)))
            networks.train(training)
            found = flat(run(wide, networks, training))
    except Exception as error:
        return {"right": None, "fault": f"not comparable: eager PyTorch is off, and float64 fails: {first_line(error)}"}
    if prepare is ours and counted(networks)["eager calls"]:
        return {"right": None, "fault": "not comparable: eager PyTorch is off, and takes our place in float64"}
    error = largest(found, reference)
    wrong = [x.shape for x in found] != [x.shape for x in reference] or not error <= _EXACT
    fault = f"off by {error:.3g} in double precision" if wrong else ""
    return {"right": not wrong, "fault": fault, "error in double precision": error}


def _verdict(
    program: Program, training: bool, found: Tensors, eager: Tensors, reference: Tensors
) -> dict[str, Any]:  # fmt: skip
    if len(found) != len(eager):
        return {"right": False, "fault": f"{len(found)} results and gradients, where eager has {len(eager)}"}
    if len(reference) != len(eager):
        return {"right": None, "fault": "not comparable: float64 takes another path"}
    fault = Check(reference, eager, _others(program, training)).fault(found)
    errors = {"error": largest(found, reference), "eager's error": largest(eager, reference)}
    return {"right": fault is None, "fault": fault or "", **errors}


def _others(program: Program, training: bool) -> Callable[[], Sequence[torch.Tensor]]:
    """Eager results where all weights are moved by a unit in the last place."""
    return disturb(program.networks, (), lambda other, _: lambda: flat(run(program, other, training)))


def largest(found: Tensors, reference: Tensors) -> float:
    """The largest difference, relative to the norm of its tensor (NaN where a number is none); tensors that have
    cancelled do not count."""
    norms = [norm(x) for x in reference]
    negligible, errors = _NEGLIGIBLE * max(norms, default=0.0), [0.0]
    for mine, true, size in zip(found, reference, norms):
        if mine.shape == true.shape and mine.dtype.is_floating_point and size > negligible:
            errors.append(distance(mine, true.double()) / size)
    return float(torch.tensor(errors, dtype=torch.float64).max())


def counted(networks: Any) -> dict[str, Any]:
    """Programs, eager calls, calls of Python inside of programs, and reasons."""
    if isinstance(networks, OptimizedFile):
        stats, pairs, handles = [networks.model.stats], [networks.model.pair], []
    else:
        handles = [network.daceopt for network in members(networks)]
        stats = [handle.stats for handle in handles]
        pairs = [graph.pair for handle in handles for graph in handle._dispatcher.graphs]
    manifests = [half.manifest for pair in pairs for half in (pair.forward, pair.backward) if half is not None]
    return {
        "programs": _programs(networks),
        "calls": sum(s.calls for s in stats),
        "eager calls": sum(s.eager_calls for s in stats),
        "pieces in eager by choice": sum(s.chosen_pieces for s in stats),
        "compile seconds": sum(s.compile_seconds for s in stats),
        "host calls": sum(k.label.startswith("hostcall_") for m in manifests for k in m.kernels),
        "why": list(dict.fromkeys(text for each in [*handles, *stats] for text in _reasons(each))),
    }


def _programs(networks: Any) -> int:
    if isinstance(networks, OptimizedFile):
        return int(networks.model.stats.programs)
    return sum(network.daceopt.stats.programs for network in members(networks))


def _reasons(record: Any) -> list[str]:
    return list(record.reasons if hasattr(record, "reasons") else record.fallbacks)


def _sizes(row: Row, networks: Any, training: bool) -> list[Any]:
    """Programs after each further size, or what goes wrong there."""
    found: list[Any] = []
    for k in SIZES:
        program = built(row, k)
        try:
            run(program, networks, training, steps=1)
        except Exception as error:
            return [*found, first_line(error)]
        found.append(_programs(networks))
    return found
