"""Tracing: bindings, refusals with reasons, stable identity, and the user's module left as it was."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from daceopt.capture.trace import trace
from daceopt.errors import CaptureError
from tests.capture.running import check

X = torch.arange(12.0).reshape(3, 4)


class Refused(nn.Module):
    """Each method is a forward that cannot be compiled."""

    def __init__(self, which):
        super().__init__()
        self.which = which
        self.count = 0
        self.history = []
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return getattr(self, self.which)(x)

    def branch(self, x):
        return x if x.sum() > 0 else -x

    def item(self, x):
        return x * x.sum().item()

    def nonzero(self, x):
        return x[x > 0]

    def counter(self, x):
        self.count += 1
        return x * self.count

    def keeps_tensor(self, x):
        self.last = x * 2
        return self.last

    def appends(self, x):
        self.history.append(x * 2)
        return x * 2

    def in_place_input(self, x):
        return x.add_(1)

    def to_numpy(self, x):
        return x * float(x.numpy().sum())

    def opaque_output(self, x):
        return x, object()


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        ("branch", "data-dependent"),
        ("item", "depends on the data"),
        ("nonzero", "depends on the data"),
        ("counter", "attribute 'count'"),
        ("keeps_tensor", "attribute 'last'"),
        ("appends", "attribute 'history'"),
        ("in_place_input", "in place"),
        ("to_numpy", "numpy"),
        ("opaque_output", "output 1 is a builtins.object"),
    ],
)
def test_refusals_say_why_and_leave_nothing_behind(which, reason, capfd):
    module = Refused(which)
    before = {k: v for k, v in module.__dict__.items() if not k.startswith("_")}
    with pytest.raises(CaptureError, match=reason):
        trace(module, (X,))
    assert {k: v for k, v in module.__dict__.items() if not k.startswith("_")} == before
    assert module.history == []
    assert capfd.readouterr().err == ""


def test_foreign_trainable_tensor_is_refused_and_own_one_is_bound():
    class Listed(nn.Module):
        def __init__(self, extra):
            super().__init__()
            self.own = nn.Parameter(torch.ones(4))
            self.scales = [self.own, *extra]

        def forward(self, x):
            return x * self.scales[0] * self.scales[-1]

    with pytest.raises(CaptureError, match="not a parameter"):
        trace(Listed([nn.Parameter(torch.ones(4))]), (X,))
    captured = check(Listed([torch.full((4,), 2.0)]), X)
    assert {s.target for s in captured.inputs if s.kind == "parameter"} == {"own"}
    assert [s.value.tolist() for s in captured.inputs if s.kind == "constant"] == [[2.0] * 4]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.table = torch.arange(4.0)

    def forward(self, x, n=1):
        return self.dropout(self.norm(self.linear(x))) * self.table + torch.tensor([1.0, 2.0, 3.0, 4.0]) * n


def test_module_is_untouched():
    net = Net()
    net(X).sum().backward()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    attributes = [set(m.__dict__) for m in net.modules()]
    grads = [p.grad for p in net.parameters()]
    called = []
    net.register_forward_hook(lambda *_: called.append(1))
    random = torch.get_rng_state()
    trace(net, (X,), {})
    assert torch.equal(torch.get_rng_state(), random)
    assert called == []
    assert [set(m.__dict__) for m in net.modules()] == attributes
    assert all(a is p.grad for a, p in zip(grads, net.parameters(), strict=True))
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert all(m.training for m in net.modules())


def test_the_original_stays_callable_while_it_is_traced():
    net, stop, results = Net().eval(), threading.Event(), []
    expected = net(X)

    def work():
        while not stop.is_set():
            results.append(net.linear.weight.data_ptr())

    worker = threading.Thread(target=work)
    worker.start()
    trace(net, (X,), {})
    stop.set()
    worker.join()
    assert set(results) == {net.linear.weight.data_ptr()}
    assert torch.equal(net(X), expected)


def test_an_installed_forward_is_seen_through():
    net = Net().eval()
    expected = trace(net, (X,), {}).fingerprint

    def dispatch(*args, **kwargs):
        raise AssertionError("the wrapper must not be traced")

    dispatch.daceopt_original = net.forward
    net.forward = dispatch
    assert trace(net, (X,), {}).fingerprint == expected
    assert net.forward is dispatch


def test_an_optimized_class_is_seen_through():
    class Compiled(Net):
        def forward(self, x, n=1):
            raise AssertionError("the wrapper must not be traced")

    Compiled.forward.daceopt_original = Net.forward
    assert trace(Compiled(), (X,)).fingerprint == trace(Net(), (X,)).fingerprint
    assert trace(nn.Sequential(Compiled()), (X,)).outputs[-1].shape == (3, 4)


FINGERPRINT = """
import torch
from daceopt.capture.trace import trace
from tests.capture.test_trace import Net, X
import sys
print(trace(Net(), (X,)).fingerprint)
heavy = sorted({m.split(".")[0] for m in sys.modules} & {"onnx", "onnxscript", "onnx_ir", "dace"})
print(heavy)
"""


def test_fingerprint_is_stable_between_processes_and_weights():
    source = FINGERPRINT.replace("from tests.capture.test_trace import Net, X", SOURCE)
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    fingerprint, heavy = run.stdout.split("\n")[:2]
    assert fingerprint == trace(Net(), (X,)).fingerprint == trace(Net(), (X + 1,)).fingerprint
    assert heavy == "[]"  # the warm path traces, and needs neither ONNX nor DaCe


SOURCE = """
from torch import nn
X = torch.arange(12.0).reshape(3, 4)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.table = torch.arange(4.0)

    def forward(self, x, n=1):
        return self.dropout(self.norm(self.linear(x))) * self.table + torch.tensor([1.0, 2.0, 3.0, 4.0]) * n
"""


def test_fingerprint_is_sensitive():
    table, wide, dropout = Net(), Net(), Net()
    table.table = torch.arange(4.0) + 1
    wide.linear = nn.Linear(4, 4, bias=False)
    dropout.dropout = nn.Dropout(0.25)
    prints = [
        trace(Net(), (X,)).fingerprint,
        trace(Net().eval(), (X,)).fingerprint,
        trace(Net(), (X[:2],)).fingerprint,
        trace(Net(), (X,), {"n": 2}).fingerprint,
        trace(Net(), (X,), dynamic={0: {0}}).fingerprint,
        trace(table, (X,)).fingerprint,
        trace(wide, (X,)).fingerprint,
        trace(dropout, (X,)).fingerprint,
    ]
    assert len(set(prints)) == len(prints)


def test_dynamic_symbols_and_ranges():
    captured = trace(nn.Linear(4, 2), (X,), {}, dynamic={0: {0}})
    ((name, place),) = captured.symbols.items()
    assert captured.inputs[place[0]].kind == "user"
    assert captured.inputs[place[0]].shape == (name, 4)
    assert place[1] == 0
    assert captured.ranges == {name: (2, None)}
    assert captured.outputs[0].shape == (name, 2)


class Keywords(nn.Module):
    def forward(self, x, *rest, scale=1.0, **more):
        return x * rest[0] * scale * more["y"][0]


def test_dynamic_by_name_through_varied_arguments():
    dim = torch.export.Dim.DYNAMIC
    spec = {"x": {0: dim}, "rest": ({0: dim},), "y": [{0: dim}]}
    captured = trace(Keywords(), (X, X), {"y": [X], "scale": 2.0}, dynamic=spec)
    assert len(captured.symbols) == 1
    assert list(captured.call_constants.values()) == [2.0]


class Sizes(nn.Module):
    def forward(self, x, y):
        return x.view(-1, 2, 4) * 2 if x.shape[0] <= 100 else x.view(-1, 2, 4)


def test_conditions_on_sizes_are_kept():
    captured = trace(Sizes(), (torch.ones(6, 4), torch.ones(6)), dynamic={0: {0}, 1: {0}})
    ((name, _),) = captured.symbols.items()  # equal sizes of one axis are one dimension, though nothing compares them
    assert [size for size in (1, 3, 4, 5, 98, 102) if captured.holds({name: size})] == [4, 98]


@pytest.mark.parametrize(
    ("dynamic", "reason"),
    [
        ({0: {5}}, "axis 5"),
        ({3: {0}}, "input 3"),
        ({0: 1}, "expected a set of axes"),
        ({"z": {0: 1}}, "names no argument"),
    ],
)
def test_bad_dynamic_is_refused(dynamic, reason):
    with pytest.raises(CaptureError, match=reason):
        trace(nn.Linear(4, 2), (X,), {}, dynamic=dynamic)


def test_specialised_dimension_is_refused():
    class Fixed(nn.Module):
        def forward(self, x):
            return x + torch.ones(3, 1)

    with pytest.raises(CaptureError, match=r"specialized|constant|must match"):
        trace(Fixed(), (X,), dynamic={0: {0}})
    with pytest.raises(CaptureError, match="hint of 1"):
        trace(nn.Linear(4, 2), (X[:1],), dynamic={0: {0}})


def test_graph_module():
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert {s.target for s in check(module, X).inputs} == {"0.weight", "0.bias", 0}


def test_autocast_is_part_of_the_graph():
    plain = trace(nn.Linear(4, 2), (X,))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = trace(nn.Linear(4, 2), (X,))
    assert mixed.outputs[0].dtype == torch.bfloat16
    assert mixed.fingerprint != plain.fingerprint


def test_enable_grad_inside_no_grad():
    class Nested(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                y = x * 2
                with torch.enable_grad():
                    z = y * x
                return y + z

    targets = [str(n.target) for n in trace(Nested(), (X,)).program.graph.nodes]
    assert targets.count("aten.detach.default") == 2
