"""The ONNX model of a trace computes what PyTorch computes, in eval mode and in training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from daceopt.capture.trace import trace
from daceopt.errors import CaptureError
from tests.capture.running import call, check, run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def operators(captured) -> Counter[str]:
    return Counter(node.op_type for node in captured.to_onnx().graph.node)


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, mask, **self.options)


def qkv(heads=4, kv_heads=4, rows=5, columns=7, width=8):
    return (
        torch.randn(2, heads, rows, width),
        torch.randn(2, kv_heads, columns, width),
        torch.randn(2, kv_heads, columns, width),
    )


def test_attention_plain_has_one_scale():
    found = operators(check(Attention(), *qkv()))
    assert found["Mul"] == 1
    assert found["MatMul"] == 2
    assert found["Shape"] == 0


def test_attention_scale_and_causal():
    check(Attention(scale=0.3, is_causal=True), *qkv(rows=6, columns=4))


def test_attention_boolean_mask():
    check(Attention(), *qkv(), torch.rand(2, 1, 5, 7) > 0.4)


def test_attention_row_without_any_key_gives_zero():
    mask = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    mask[0, 0, 2] = False
    check(Attention(), *qkv(), mask)
    check(Attention(), *qkv(), torch.zeros(mask.shape).masked_fill(~mask, -torch.inf))


def test_attention_additive_mask():
    check(Attention(), *qkv(), torch.randn(5, 7))


def test_attention_grouped_heads():
    check(Attention(enable_gqa=True), *qkv(heads=6, kv_heads=2))


def test_attention_without_batch():
    check(Attention(), torch.randn(5, 8), torch.randn(7, 8), torch.randn(7, 8))


class SelfAttention(nn.Module):
    def forward(self, x):
        q, k, v = x.view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(x.shape[0], x.shape[1], 8)


def test_attention_dynamic_rows():
    captured = check(SelfAttention(), torch.randn(2, 5, 24), dynamic={0: {0, 1}}, other=(torch.randn(3, 9, 24),))
    assert len(captured.symbols) == 2


def test_attention_dropout_is_in_training_mode():
    captured = trace(Attention(dropout_p=0.25), qkv(), {})
    model = captured.to_onnx()
    dropout = next(n for n in model.graph.node if n.op_type == "Dropout")
    constants = {
        n.output[0]: onnx.numpy_helper.to_array(n.attribute[0].t) for n in model.graph.node if n.op_type == "Constant"
    }
    constants |= {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert float(constants[dropout.input[1]]) == 0.25
    assert bool(constants[dropout.input[2]])


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(3, momentum=0.3), nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, eps=1e-2)]
)
def test_batch_norm_training_updates_unbiased_statistics(layer):
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    captured = check(layer, torch.randn(2, 3, 2, 3))
    mutated = [out.target for out in captured.outputs if out.kind == "buffer_mutation"]
    assert set(mutated) == {"running_mean", "running_var", "num_batches_tracked"}
    assert operators(captured)["BatchNormalization"] == 1


def test_batch_norm_training_few_elements():
    check(nn.BatchNorm1d(5), torch.randn(2, 5))


def test_batch_norm_training_dynamic_batch():
    check(nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5), dynamic={0: {0}}, other=(torch.randn(7, 3, 5, 5),))


def test_batch_norm_eval_and_without_statistics():
    layer = nn.BatchNorm2d(3).eval()
    layer.running_var.uniform_(0.5, 2)
    check(layer, torch.randn(2, 3, 4, 4))
    check(nn.BatchNorm2d(3, track_running_stats=False), torch.randn(2, 3, 4, 4))
    check(nn.BatchNorm2d(3, track_running_stats=False).eval(), torch.randn(2, 3, 4, 4))


class BatchNormParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x):
        return torch._native_batch_norm_legit(x, None, None, self.mean, self.var, True, 0.1, 1e-5)


def test_batch_norm_saved_statistics():
    check(BatchNormParts(), torch.randn(4, 3, 5))


class DropoutParts(nn.Module):
    def __init__(self, p, train=True):
        super().__init__()
        self.p, self.on = p, train

    def forward(self, x):
        return torch.native_dropout(x, self.p, self.on)


def test_dropout_mask_and_scale():
    captured = trace(DropoutParts(0.25), (torch.ones(64, 64),), {})
    (kept, mask), _ = call(captured, nn.Module(), (torch.ones(64, 64),))
    torch.testing.assert_close(kept, mask / 0.75)
    assert 0.7 < mask.float().mean() < 0.8


@pytest.mark.parametrize(("p", "train"), [(0.0, True), (1.0, True), (0.5, False)])
def test_dropout_limits(p, train):
    check(DropoutParts(p, train), torch.randn(3, 4))


def test_dropout_module_in_eval_is_gone():
    assert (
        operators(trace(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval(), (torch.randn(3, 4),), {}))["Dropout"] == 0
    )


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.norm = nn.LayerNorm(8)
        self.rms = nn.RMSNorm(8, eps=1e-6)
        self.linear = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 11, bias=False)
        self.tied.weight = self.embedding.weight

    def forward(self, ids):
        x = self.norm(self.embedding(ids))
        x = x + F.gelu(self.linear(self.rms(x))) + F.gelu(x, approximate="tanh") + x * torch.tanh(F.softplus(x))
        return self.tied(x)


def test_layers_with_tied_weights():
    captured = check(Layers(), torch.randint(0, 11, (2, 5)))
    assert operators(captured)["Gemm"] == 0
    assert all(spec.kind != "constant" for spec in captured.inputs)


@dataclass
class Pair:
    first: object
    second: object


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.table = torch.arange(4.0)

    def forward(self, x, n=2):
        y = x * self.scale + self.table
        return {
            "pair": Pair(y * n, (y, y)),
            "x": x,
            "weight": self.scale,
            "nothing": None,
            "n": n,
            "ids": torch.arange(3) + 1,
        }


def test_nested_outputs_round_trip():
    captured = check(Nested(), torch.randn(3, 4), n=3)
    assert captured.call_constants == {1: 3}
    assert Counter(out.kind for out in captured.outputs) == {"user": 3, "alias": 1, "input": 2, "constant": 2}


class Scalars(nn.Module):
    def forward(self, x, keep, index):
        return torch.where(keep, x.sum(), -x.sum()), x[0] * index, keep & keep


def test_zero_rank_and_integer_inputs():
    check(Scalars(), torch.randn(3, 4), torch.tensor(False), torch.tensor(3))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            shift = self.linear(x)
        return x.detach() * shift + self.linear(x)


def test_gradient_stops_are_kept():
    captured = check(Detached(), torch.randn(3, 4))
    model = captured.to_onnx()
    assert [n.op_type for n in model.graph.node if n.domain == "daceopt"] == ["StopGradient"] * 2
    assert [(f.domain, f.name) for f in model.functions] == [("daceopt", "StopGradient")]


def test_model_is_complete_and_ordered():
    captured = trace(Layers(), (torch.randint(0, 11, (2, 5)),), {}, dynamic={0: {0}})
    model = captured.to_onnx()
    onnx.checker.check_model(model)
    assert len(model.graph.input) == len(captured.inputs)
    assert len({v.name for v in (*model.graph.input, *model.graph.output)}) == len(model.graph.input) + 1
    batch = model.graph.output[0].type.tensor_type.shape.dim[0].dim_param
    place, axis = captured.symbols[batch]
    assert captured.inputs[place].shape[axis] == batch
    assert model.graph.input[place].type.tensor_type.shape.dim[axis].dim_param == batch


class Special(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_operator_without_onnx_form_is_named():
    with pytest.raises(CaptureError, match="bessel_j0"):
        trace(Special(), (torch.randn(3),), {}).to_onnx()


class Broadcast(nn.Module):
    def forward(self, x, y):
        z = x.view(x.shape[0], -1, 2).expand(-1, -1, 2).reshape(x.shape[0], 4)
        return z + y.expand(x.shape[0], 4) + torch.arange(4) + torch.arange(0, 2, 0.5, dtype=torch.float64)


def test_dynamic_batch_needs_no_shape_arithmetic():
    other = (torch.randn(5, 4), torch.randn(1, 4))
    captured = check(
        Broadcast(), torch.randn(3, 4), torch.randn(1, 4), dynamic={"x": {0: torch.export.Dim.DYNAMIC}}, other=other
    )
    assert operators(captured)["Concat"] <= 1  # y's extent is static, so its expansion must know the batch


class Grid(nn.Module):
    def __init__(self, rows=None, columns=None):
        super().__init__()
        self.rows, self.columns = rows, columns

    def forward(self, x):
        rows = torch.arange(x.shape[0] if self.rows is None else self.rows)
        columns = torch.arange(x.shape[1] if self.columns is None else self.columns) + 0
        return x[rows[:, None, None], columns[None, None, :]]


def test_grid_index_is_a_view():
    assert operators(check(Grid(), torch.randn(3, 4)))["GatherND"] == 0
    captured = check(Grid(), torch.randn(3, 4), dynamic={0: {0, 1}}, other=(torch.randn(5, 6),))
    assert operators(captured)["GatherND"] == 0


def test_partial_grid_index_gathers():
    assert operators(check(Grid(rows=2), torch.randn(3, 4)))["GatherND"] == 1
    assert operators(check(Grid(columns=3), torch.randn(3, 4)))["GatherND"] == 1


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=20,
        max_position_embeddings=12,
    )
    return transformers.BertModel(config)


def test_bert_eval_dynamic_batch():
    mask = torch.tensor([[1, 1, 1, 1, 0]] * 2)
    other = (torch.randint(0, 20, (3, 5)), torch.ones(3, 5, dtype=torch.int64))
    check(bert().eval(), torch.randint(0, 20, (2, 5)), mask, dynamic={0: {0}, 1: {0}}, other=other)


def test_bert_training_keeps_dropout():
    found = operators(trace(bert(), (torch.randint(0, 20, (2, 5)),), {}))
    assert found["Dropout"] == 7  # embeddings, and three in each layer
    assert found["Shape"] == found["GatherND"] == 0


@pytest.mark.parametrize("training", [False, True])
def test_resnet(training):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    check(transformers.ResNetModel(config).train(training), torch.randn(2, 3, 16, 16))


def test_onnx_runs_without_weights_inside():
    layer = nn.Linear(3, 2)
    model = trace(layer, (torch.randn(4, 3),), {}).to_onnx()
    weight, bias, x = torch.randn(2, 3), torch.randn(2), torch.randn(4, 3)
    feeds = dict(zip([v.name for v in model.graph.input], [weight.numpy(), bias.numpy(), x.numpy()], strict=True))
    np.testing.assert_allclose(run(model, feeds)[0], (x @ weight.T + bias).numpy(), rtol=1e-5, atol=1e-6)
