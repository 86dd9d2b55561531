"""What is said of the parts of a model that run in eager PyTorch: the line, what about it, which part, what instead."""

from __future__ import annotations

import copy
import json
import linecache
import pickle
import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from daceopt import optimized_module
from daceopt.errors import CaptureError, DaceoptError, FallbackWarning, Unsupported
from daceopt.modules import breaks
from daceopt.modules.breaks import Break, SourceLine, innermost


@pytest.fixture(autouse=True)
def _programs(interpreted):
    pass


class Model(nn.Module):
    """Two layers, and ``between`` them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between

    def forward(self, x):
        return self.last(self.between(self.first(x)).tanh()).tanh()


def _pickles(h):
    pickle.dumps(3)  # HERE
    return h


def _infers(h):
    with torch.inference_mode():  # HERE
        h = h * 2
    return h.clone()


def _generates(h):
    return h * torch.distributions.Bernoulli(0.5).sample().tolist()  # HERE


def _asks(h):
    return h * 2 if h.is_pinned() else h * 3  # HERE


def _writes(h):
    windows = h.detach().clone().unfold(1, 2, 1)
    windows.mul_(2)  # HERE
    return h + windows.sum()


BREAKS = {
    "_pickle.dumps is Python that cannot be traced": (_pickles, breaks.BETWEEN, "take it out of forward"),
    "torch.inference_mode inside of forward": (_infers, "in all of _infers", "torch.no_grad"),
    "is_pinned returned a non-Tensor, of type bool": (_asks, breaks.BETWEEN, "before the call of the model"),
    "a write into windows (by unfold)": (_writes, "in a piece of", ""),
}


def line_of(function: Any) -> int:
    first = function.__code__.co_firstlineno
    return next(n for n in range(first, first + 9) if "# HERE" in linecache.getline(__file__, n))


@pytest.mark.parametrize("reason", BREAKS)
def test_a_warning_is_about_the_line(reason):
    between, part, instead = BREAKS[reason]
    model = Model(between)
    expected, x = copy.deepcopy(model), torch.ones(3, 4)
    optimized_module(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.allclose(model(x), expected(x))
    said = next(w for w in caught if reason in str(w.message))
    assert said.category is FallbackWarning
    assert (said.filename, said.lineno) == (__file__, line_of(between))
    assert all(w.category is FallbackWarning for w in caught), [str(w.message) for w in caught]
    found = next(b for b in model.daceopt.explain_breaks() if reason in b.reason)
    assert str(said.message) == f"Model {found}"
    assert part in found.part and instead in found.instead and bool(instead) == bool(found.instead)
    assert found.place.source.endswith("# HERE") and found.place.function == between.__name__
    assert model.daceopt.reasons[found.text] >= 1


def test_a_buffer_that_is_assigned_to_itself():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(4, 4), nn.Buffer(torch.full((4,), 2.0))

        def forward(self, x):
            self.scale = self.scale.to(x.device)
            return self.linear(x) * self.scale

    theirs = Net()
    net = optimized_module(copy.deepcopy(theirs), recipe="cpu", fallback="silent")
    torch.testing.assert_close(net(torch.ones(3, 4)), theirs(torch.ones(3, 4)))
    (reason,) = net.daceopt.reasons
    assert reason.startswith("an nn.Buffer is assigned") and "self.scale.to" in reason


def test_what_fallback_raises_has_the_line():
    model = optimized_module(Model(_pickles), fallback="raise")
    line = f"test_breaks.py:{line_of(_pickles)}"
    with pytest.raises(CaptureError, match=rf"_pickle.dumps(.|\n)*{line}(.|\n)*instead: take"):
        model(torch.ones(3, 4))
    assert [b.reason for b in model.daceopt.explain_breaks()] == ["_pickle.dumps is Python that cannot be traced"]
    model = optimized_module(Model(_writes), fallback="raise")
    with pytest.raises(Unsupported, match=rf"by unfold(.|\n)*test_breaks.py:{line_of(_writes)}"):
        model(torch.ones(3, 4))


# -------------------------------------------------------------------- counts


def test_pieces_that_run_in_eager_are_counted():
    """Also where a call is run past Dynamo: ``forward`` and what it calls."""
    model = optimized_module(Model(_writes), fallback="silent")
    for _ in range(4):
        model(torch.ones(3, 4))
    stats = model.daceopt.stats
    assert (stats.programs, stats.calls, stats.eager_calls, stats.eager_pieces) == (0, 4, 4, 8)
    assert repr(model.daceopt) == "<daceopt: 0 programs, 4 calls, 4 of them eager, 8 pieces in eager>"


def test_calls_are_not_eager_where_another_piece_is_compiled():
    model = Model(lambda h: _writes(_pickles(h).tanh()))
    optimized_module(model, fallback="silent")
    for _ in range(4):
        model(torch.ones(3, 4))
    stats = model.daceopt.stats
    assert stats.programs >= 1 and stats.eager_calls == 0 and stats.eager_pieces == 8


class Tail(nn.Module):
    """A graph that breaks inside of what ``forward`` does last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def helper(self, x):
        return self.last(_pickles(self.first(x).tanh())).tanh()

    def forward(self, x):
        return self.helper(x)


def test_pieces_of_what_is_called_last_run_in_each_call():
    model = optimized_module(Tail(), fallback="silent")
    counts = []
    for _ in range(3):
        model(torch.ones(3, 4))
        counts.append(model.daceopt._dispatcher._compiled.backend.ran)
    assert counts == [2, 4, 6] and model.daceopt.stats.programs == 2


# -------------------------------------------------------------------- sparse tensors


SPARSE = {
    "sparse.mm": torch.sparse.mm,
    "operator": lambda adjacency, h: adjacency @ h,
    "method": lambda adjacency, h: adjacency.matmul(h),
    "shape": lambda adjacency, h: h * adjacency.shape[0],
    "indices": lambda adjacency, h: h.index_add(0, adjacency.indices()[0], h[adjacency.indices()[1]]),
    "branch": lambda adjacency, h: adjacency @ h if adjacency.is_sparse else h.sin(),
}


class Graphs(nn.Module):
    def __init__(self, combine: Any) -> None:
        super().__init__()
        self.first, self.last, self.combine = nn.Linear(4, 4), nn.Linear(4, 4), combine

    def forward(self, x, adjacency):
        return self.last(self.combine(adjacency, self.first(x).tanh()).sin()).tanh()


@pytest.mark.parametrize("use", SPARSE)
def test_the_graph_breaks_where_a_sparse_tensor_is_used(use):
    """Not where it comes in; what it is like is looked at in each call, a dense one as well."""
    model = Graphs(SPARSE[use]).double()
    expected = copy.deepcopy(model)
    optimized_module(model, fallback="silent")
    edges = [(torch.eye(4).double() * k).to_sparse() for k in (1, 2)]
    for adjacency in [*edges, edges[0].to_dense() if use != "indices" else edges[0]]:
        x = torch.randn(4, 4).double()
        for m in (model, expected):
            m.zero_grad()
            m(x, adjacency).sum().backward()
        assert torch.allclose(model(x, adjacency), expected(x, adjacency))
        assert all(torch.allclose(p.grad, q.grad) for p, q in zip(model.parameters(), expected.parameters()))
    assert model.daceopt.stats.programs >= 2 and model.daceopt.stats.eager_calls == 0
    assert any("a sparse tensor" in b.reason for b in model.daceopt.explain_breaks())


class Words(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.last = table, nn.Linear(4, 4)

    def forward(self, ids):
        return self.last(self.table(ids).tanh()).tanh()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_with_sparse_gradients_runs_in_eager_alone(kind):
    model = Words(kind(10, 4, sparse=True))
    expected, ids = copy.deepcopy(model), torch.randint(10, (3, 2))
    optimized_module(model, fallback="silent")
    for m in (model, expected):
        m(ids).sum().backward()
    assert model.table.weight.grad.is_sparse and model.daceopt.stats.programs == 1
    assert torch.allclose(model.table.weight.grad.to_dense(), expected.table.weight.grad.to_dense(), atol=1e-6)
    assert any("an embedding with sparse gradients" in b.said for b in model.daceopt.explain_breaks())
    with torch.no_grad():
        assert torch.allclose(model(ids), expected(ids), atol=1e-6)
    assert model.daceopt.stats.eager_pieces == 0


# -------------------------------------------------------------------- what PyTorch says is not shown


def test_dynamo_is_not_heard(capfd):
    """Neither its advice on what it does not trace, nor its limit, nor how a function fails in its trace."""

    def between(self, h):
        time.perf_counter()
        with torch.profiler.record_function("name"):
            return h * self.scale

    class Scaled(Model):
        def forward(self, x):
            return self.last(between(self, self.first(x)))

    model = Scaled(None)
    optimized_module(model, fallback="silent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(3):
            model.scale = f"{k}" and float(k)
            model(torch.ones(3, 4))
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""


# -------------------------------------------------------------------- the records


def test_text():
    place = SourceLine(__file__, line_of(_pickles), "_pickles")
    found = Break("it is Python", breaks.BETWEEN, place, "something else")
    assert found.text.startswith("it is Python, at ") and found.text.endswith("in _pickles: `pickle.dumps(3)  # HERE`")
    assert str(found) == f"runs in eager PyTorch {breaks.BETWEEN}: {found.text}. Instead: something else"
    assert str(Break("why", breaks.WHOLE)) == "runs in eager PyTorch as a whole: why"
    assert str(SourceLine("<string>", 3, "f")) == "<string>:3, in f"


def test_innermost():
    """The user's where there is one, PyTorch's own otherwise; never what daceopt or Python put around."""
    own = [
        SourceLine(nn.__file__, 3, "forward"),
        SourceLine(breaks.__file__, 1, "g"),
        SourceLine(warnings.__file__, 1, "warn"),
    ]
    user = SourceLine(__file__, 5, "torch_dynamo_resume_in_forward_at_7")
    frames = [_Frame(p.file, p.line, p.function) for p in (user, *own)]
    assert innermost(frames) == SourceLine(__file__, 5, "forward")
    assert innermost(frames[1:3]) == own[0] and innermost(frames[2:3]) is None and innermost([]) is None


class _Frame:
    def __init__(self, filename: str, lineno: int, name: str) -> None:
        self.filename, self.lineno, self.name = filename, lineno, name


SAID = {
    "Data-dependent branching\n  Explanation: Detected": "a branch depends on what a tensor holds",
    "Dynamic shape operator\n  Explanation: Operator `aten.nonzero.default`'s output shape": (
        "the size of what nonzero gives depends on what a tensor holds"
    ),
    "the derivative of aten.index_put.default, by PyTorch's formula: aten.nonzero.default": (
        "the size of what nonzero gives depends on what a tensor holds"
    ),
    "Dynamic shape operator\n  Explanation: Operator `aten._ctc_loss.Tensor`'s output shape": (
        "the size of what _ctc_loss gives, or keeps, depends on what a tensor holds"
    ),
    "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like symbols: none)": (
        "a branch depends on what a tensor holds"
    ),
    "Could not guard on data-dependent expression Eq(u0, 1) (unhinted: Eq(u0, 1)).  (Size-like symbols: u0)": (
        "a branch, or a shape, depends on a size that only the data decide"
    ),
    "torch.* op returned non-Tensor\n  Explanation: x\n\n  Developer debug context: example_value type: int; op: call_"
    "function; target: <Wrapped function <original sum>>": "sum returned a non-Tensor, of type int",
    "Failed to trace builtin operator\n  Explanation: builtin operator `print` with": ("print writes to the terminal"),
    "x has layout torch.sparse_csr; expected a dense tensor": "a sparse tensor: programs are over dense ones",
    "NotImplementedError:": "PyTorch cannot tell the shapes of what it computes",
    "Missing tp_iternext\n  Explanation: Dynamo does": "an iterator, or an unpacking, that cannot be traced",
    "HOP: Unsafe side effect\n  Explanation: Mutating a variable from": (
        "a function that PyTorch calls (of torch.cond, a checkpoint, a hook or a transform) changes what lies outside"
    ),
    "Unsupported method call\n  Explanation: Dynamo does not know how to trace method `f` of class `set`": (
        "the method f of set cannot be traced"
    ),
    "Observed exception\n  Explanation: x\n\n  Developer debug context: raised exception KeyError([])": (
        "KeyError is raised: an exception that forward does not catch"
    ),
    "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with fake tensors: call_fun"
    "ction f(*(FakeTensor(..., size=(3, 4)),), **{}): got RuntimeError('shapes differ')": (
        "PyTorch refuses this call: shapes differ"
    ),
    "something new\n  Explanation: of Dynamo's": "something new",
}

INNER = re.compile(
    r"HOP|higher.?order|proxy|\wVariable|Tracker|\btp_|\b(nb|sq|mp)_|_impl\b|richcompare|sourceless|bytecode|Dynamo|AOT"
    r"|functorch|fake|Sym(Node|Int|Float)|unbacked|reconstruct|\bwrap\b|wrapped|inlin|\bmro\b|_dynamo|config|region"
    r"|attempted|skipped|placeholder|encountered|handler|override",
    re.IGNORECASE,
)
"""Words of Dynamo's own."""


@pytest.mark.parametrize("said", SAID)
def test_reasons_in_the_user_s_words(said):
    found = breaks.to_break(said, breaks.WHOLE)
    assert found.reason == SAID[said] and found.said == said


def test_no_kind_of_break_is_told_in_words_of_dynamo_s_own():
    """Of the breaks that the registry of this PyTorch lists, whatever stands for what is in braces."""
    registry = Path(torch._dynamo.__file__).with_name("graph_break_registry.json")
    kinds = [kind for versions in json.loads(registry.read_text()).values() for kind in versions]
    told = {}
    for kind in kinds:
        said = (
            f"{kind['Gb_type']}\n  Explanation: {kind['Explanation']}\n\n  Developer debug context: {kind['Context']}"
        )
        told[kind["Gb_type"]] = breaks.to_break(re.sub(r"\{[^}]*\}", "this", said), breaks.WHOLE).reason
    assert len(told) > 400 and all(told.values())
    assert {name: reason for name, reason in told.items() if INNER.search(reason)} == {}


def test_an_error_keeps_its_first_line():
    error = breaks.with_place(DaceoptError("why"), Break("why", breaks.WHOLE, SourceLine(__file__, 1, "f"), "that"))
    again = breaks.with_place(error, Break("why", breaks.WHOLE, SourceLine(__file__, 1, "f"), "that"))
    assert str(again).splitlines()[0] == "why" and len(str(again).splitlines()) == 3
