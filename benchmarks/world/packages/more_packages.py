"""Packages that need no torchvision: a function a package, which makes the program of a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.world.catalogue import BOTH, Row
from benchmarks.world.program import Program

TRAINING = ("training",)


def rows() -> Iterator[Row]:
    tables: tuple[tuple[str, Callable[[str, int], Program], str, tuple[str, ...]], ...] = (
        ("x-transformers", x_transformer, "decoder decoder-rotary decoder-alibi encoder encoder-decoder vit "
         "decoder-memory decoder-gated wrapper-loss", BOTH),
        ("torch-geometric", graph_network, "GCN GAT GATv2 GraphSAGE GIN PNA EdgeCNN Transformer SchNet "
         "NNConv pooled", BOTH),
        ("diffusers", diffuser, "UNet2DModel UNet2DConditionModel AutoencoderKL VQModel DiTTransformer2DModel "
         "SD3Transformer2DModel FluxTransformer2DModel ControlNetModel PixArtTransformer2DModel", BOTH),
        ("monai", medical, "UNet SegResNet DynUNet VNet UNETR SwinUNETR AttentionUnet BasicUNetPlusPlus DenseNet121 ViT "
         "AutoEncoder VarAutoEncoder DiceCE", BOTH),
        ("peft", adapted, "lora ia3 prefix loha lokr dora adalora vera", BOTH),
        ("lightning", lit, "regression manual-optimization", TRAINING),
        ("accelerate", accelerated, "prepared bf16", TRAINING),
        ("pytorch-tabnet", tabular, "TabNet TabNetPretraining TabNet-entmax", BOTH),
        ("e3nn", equivariant, "point-cloud gates tensor-product", BOTH),
        ("chgnet", crystals, "energy forces", ("training",)),
        ("stable-baselines3", agent, "PPO-mlp PPO-cnn A2C DQN SAC TD3", TRAINING),
        ("pytorch-forecasting", forecaster, "TemporalFusionTransformer NBeats NHiTS RecurrentNetwork DeepAR", TRAINING),
    )  # fmt: skip
    for package, build, names, modes in tables:
        for name in names.split():
            yield Row(package, name, partial(build, name), "world", modes)


def x_transformer(name: str, k: int) -> Program:
    """Two layers of width 512 with the options that a name stands for."""
    from x_transformers import (
        AutoregressiveWrapper,
        Decoder,
        Encoder,
        TransformerWrapper,
        ViTransformerWrapper,
        XTransformer,
    )

    sizes = {"dim": 512, "depth": 2, "heads": 8}
    options = {
        "decoder-rotary": {"rotary_pos_emb": True, "use_rmsnorm": True, "ff_swish": True, "ff_glu": True},
        "decoder-alibi": {"alibi_pos_bias": True, "attn_qk_norm": True},
        "decoder-memory": {"attn_num_mem_kv": 4},
        "decoder-gated": {"attn_gate_values": True, "residual_attn": True, "gate_residual": True},
    }
    tokens = torch.randint(0, 1000, (2, 64 + 16 * k))
    if name == "vit":
        model = ViTransformerWrapper(image_size=128, patch_size=16, num_classes=100, attn_layers=Encoder(**sizes))
        return Program(model, (torch.randn(2 + k, 3, 128, 128),))
    if name == "encoder-decoder":
        sides = {f"{s}_{n}": v for s in ("enc", "dec") for n, v in (*list(sizes.items())[1:], ("num_tokens", 1000), ("max_seq_len", 128))}  # fmt: skip
        return Program(XTransformer(dim=512, **sides), (tokens, torch.randint(0, 1000, (2, 32))))
    layers = (Encoder if name == "encoder" else Decoder)(**sizes, **options.get(name, {}))
    model = TransformerWrapper(num_tokens=1000, max_seq_len=256, attn_layers=layers)
    return Program(AutoregressiveWrapper(model) if name == "wrapper-loss" else model, (tokens,))


def graph_network(name: str, k: int) -> Program:
    """Graphs whose numbers of nodes and edges differ from size to size."""
    import torch_geometric.nn as gnn

    nodes, edges = 200 + 17 * k, 900 + 41 * k
    x, index = torch.randn(nodes, 32), torch.randint(0, nodes, (2, edges))
    if name == "SchNet":
        return _molecule(gnn, k)
    if name == "NNConv":
        return Program(_EdgeNetwork(gnn), (x, index, torch.randn(edges, 4)))
    if name == "pooled":
        return Program(_Pooled(gnn), (x, index, torch.arange(nodes) // 50))
    if name == "Transformer":
        return Program(gnn.Sequential("x, e", [(gnn.TransformerConv(32, 16, heads=4), "x, e -> x"), nn.ReLU(inplace=True), (gnn.TransformerConv(64, 8), "x, e -> x")]), (x, index))  # fmt: skip
    kinds = {"GAT": (gnn.GAT, {"heads": 4}), "GATv2": (gnn.GAT, {"v2": True, "heads": 4}), "PNA": (gnn.PNA, _pna())}
    kind, options = kinds.get(name, (getattr(gnn, name, None), {}))
    return Program(kind(32, 64, num_layers=2, out_channels=8, **options), (x, index))


def _pna() -> dict[str, Any]:
    scalers = ["identity", "amplification", "attenuation"]
    return {"aggregators": ["mean", "max", "std"], "scalers": scalers, "deg": torch.tensor([1, 3, 8, 20, 30, 20, 9])}


def _molecule(gnn: Any, k: int) -> Program:
    count = 12 + 2 * k
    model = gnn.SchNet(64, 64, 2, interaction_graph=_Near(5.0))
    atoms = torch.randint(1, 9, (count,))
    return Program(model, (atoms, torch.randn(count, 3) * 2, torch.zeros(count, dtype=torch.int64)))


class _Near(nn.Module):
    """Edges between atoms within a distance, in plain PyTorch (the package's own takes a compiled extension)."""

    def __init__(self, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff

    def forward(self, position: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        distance = torch.cdist(position, position)
        near = (distance < self.cutoff) & (batch[:, None] == batch) & (distance > 0)
        row, column = near.nonzero(as_tuple=True)
        return torch.stack([row, column]), (position[row] - position[column]).norm(dim=-1)


class _EdgeNetwork(nn.Module):
    def __init__(self, gnn: Any) -> None:
        super().__init__()
        self.conv = gnn.NNConv(32, 16, nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 512)))
        self.gru = nn.GRU(16, 16)

    def forward(self, x: torch.Tensor, index: torch.Tensor, attributes: torch.Tensor) -> torch.Tensor:
        m = torch.relu(self.conv(x, index, attributes))
        return self.gru(m[None])[0][0]


class _Pooled(nn.Module):
    def __init__(self, gnn: Any) -> None:
        super().__init__()
        self.means, self.largest = gnn.global_mean_pool, gnn.global_max_pool
        self.first, self.second = gnn.GraphConv(32, 32), gnn.GraphConv(32, 32)
        self.pool = gnn.TopKPooling(32, ratio=0.5)
        self.out = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x, index))
        x, index, _, batch, _, _ = self.pool(x, index, None, batch)
        x = torch.relu(self.second(x, index))
        return self.out(torch.cat([self.means(x, batch), self.largest(x, batch)], 1))


def diffuser(name: str, k: int) -> Program:
    """Denoisers and autoencoders, of few blocks."""
    import diffusers

    image, time = torch.randn(2 + k, 4, 16, 16), torch.tensor([10] * (2 + k))
    text = torch.randn(2 + k, 8, 64)
    blocks = {"block_out_channels": (64, 128), "layers_per_block": 1}
    crossed = {**blocks, "in_channels": 4, "cross_attention_dim": 64, "attention_head_dim": 8, "sample_size": 16,
               "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}  # fmt: skip
    attention = {
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "num_layers": 2,
        "sample_size": 16,
        "patch_size": 2,
    }
    make: dict[str, Callable[[], Program]] = {
        "UNet2DModel": lambda: Program(diffusers.UNet2DModel(sample_size=16, in_channels=4, out_channels=4, **blocks, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")), (image, time)),
        "UNet2DConditionModel": lambda: Program(diffusers.UNet2DConditionModel(**crossed, out_channels=4, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")), (image, time, text)),
        "ControlNetModel": lambda: Program(diffusers.ControlNetModel(**{n: v for n, v in crossed.items() if n != "sample_size"}), (image, time, text, torch.randn(2 + k, 3, 128, 128))),
        "AutoencoderKL": lambda: Program(diffusers.AutoencoderKL(**blocks, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4), (torch.randn(2 + k, 3, 32, 32),)),
        "VQModel": lambda: Program(diffusers.VQModel(**blocks, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2), (torch.randn(2 + k, 3, 32, 32),)),
        "DiTTransformer2DModel": lambda: Program(diffusers.DiTTransformer2DModel(**attention), (image, time, torch.zeros(2 + k, dtype=torch.int64))),
        "PixArtTransformer2DModel": lambda: Program(diffusers.PixArtTransformer2DModel(**attention, in_channels=4, out_channels=8, cross_attention_dim=128, caption_channels=64, use_additional_conditions=False), {"hidden_states": image, "encoder_hidden_states": text, "timestep": time, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
        "SD3Transformer2DModel": lambda: Program(diffusers.SD3Transformer2DModel(**attention, in_channels=4, out_channels=4, joint_attention_dim=64, caption_projection_dim=128, pooled_projection_dim=64, pos_embed_max_size=16), (image, text, torch.randn(2 + k, 64), time)),
        "FluxTransformer2DModel": lambda: Program(diffusers.FluxTransformer2DModel(in_channels=16, num_layers=1, num_single_layers=2, attention_head_dim=32, num_attention_heads=4, joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=(8, 12, 12)), {"hidden_states": torch.randn(2 + k, 64, 16), "encoder_hidden_states": text, "pooled_projections": torch.randn(2 + k, 64), "timestep": torch.rand(2 + k), "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(8, 3)}),
    }  # fmt: skip
    found = make[name]()
    return found._replace(inputs={**found.inputs, "return_dict": False}) if isinstance(found.inputs, dict) else found


def medical(name: str, k: int) -> Program:
    """Volumes of 32 or 64 voxels a side."""
    from monai.losses import DiceCELoss
    from monai.networks import nets

    volume = torch.randn(1 + k, 1, *[64 if name in ("SwinUNETR", "DenseNet121") else 32] * 3)
    sizes = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
    steps = {"channels": (16, 32, 64), "strides": (2, 2)}
    make: dict[str, Callable[[], nn.Module]] = {
        "UNet": lambda: nets.UNet(**sizes, **steps, num_res_units=2),
        "DiceCE": lambda: nets.UNet(**sizes, **steps),
        "AttentionUnet": lambda: nets.AttentionUnet(**sizes, **steps),
        "SegResNet": lambda: nets.SegResNet(**sizes, init_filters=8),
        "DynUNet": lambda: nets.DynUNet(**sizes, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[16, 32, 64]),
        "VNet": lambda: nets.VNet(**sizes),
        "UNETR": lambda: nets.UNETR(1, 2, (32, 32, 32), feature_size=8, hidden_size=96, mlp_dim=192, num_heads=4),
        "SwinUNETR": lambda: nets.SwinUNETR(in_channels=1, out_channels=2, feature_size=12),
        "BasicUNetPlusPlus": lambda: nets.BasicUNetPlusPlus(**sizes, features=(8, 8, 16, 32, 64, 8)),
        "DenseNet121": lambda: nets.DenseNet121(**sizes),
        "ViT": lambda: nets.ViT(1, (32, 32, 32), (8, 8, 8), hidden_size=192, mlp_dim=384, num_layers=2, num_heads=4),
        "AutoEncoder": lambda: nets.AutoEncoder(3, 1, 1, channels=(16, 32), strides=(2, 2)),
        "VarAutoEncoder": lambda: nets.VarAutoEncoder(3, (1, 32, 32, 32), 1, 16, channels=(16, 32), strides=(2, 2)),
    }  # fmt: skip
    model = make[name]()
    if name != "DiceCE":
        return Program(model, (volume,), random="it draws its latent variable" if name == "VarAutoEncoder" else "")
    criterion = DiceCELoss(softmax=True, to_onehot_y=True)
    label = torch.randint(0, 2, (1 + k, 1, 32, 32, 32))

    def step(network: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = criterion(network(x), y)
        if loss.requires_grad:
            loss.backward()
        return loss

    return Program(model, (volume, label), step)


def adapted(name: str, k: int) -> Program:
    """A small Llama with adapters of a kind on its projections."""
    import peft
    import transformers

    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 1024}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=1000, use_cache=name == "prefix", **sizes))
    targets = {"target_modules": ["q_proj", "v_proj"]}
    configs: dict[str, Callable[[], Any]] = {
        "lora": lambda: peft.LoraConfig(r=8, lora_dropout=0.0, **targets),
        "dora": lambda: peft.LoraConfig(r=8, use_dora=True, **targets),
        "ia3": lambda: peft.IA3Config(**targets, feedforward_modules=[]),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "loha": lambda: peft.LoHaConfig(r=8, **targets),
        "lokr": lambda: peft.LoKrConfig(r=8, **targets),
        "adalora": lambda: peft.AdaLoraConfig(total_step=100, **targets),
        "vera": lambda: peft.VeraConfig(r=16, **targets),
    }
    tokens = torch.randint(5, 1000, (2, 48 + 16 * k))
    return Program(peft.get_peft_model(base, configs[name]()), {"input_ids": tokens, "labels": tokens})


def lit(name: str, k: int) -> Program:
    """Two batches of ``Trainer.fit``, which calls the optimized network from ``training_step``."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network
            self.automatic_optimization = name != "manual-optimization"

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = nn.functional.mse_loss(self.network(x), y)
            self.log("loss", loss, prog_bar=False)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    def step(networks: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, precision="64-true" if x.dtype is torch.float64 else "32-true")  # fmt: skip
        trainer.fit(Module(networks["network"]), loader)
        return [p.detach().clone() for p in networks.parameters()]

    network = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Linear(128, 8))
    return Program(
        nn.ModuleDict({"network": network}), (torch.randn(32 + 16 * k, 64), torch.randn(32 + 16 * k, 8)), step
    )


def accelerated(name: str, k: int) -> Program:
    """A step of ``Accelerator``: prepared network and optimizer, its backward and its clipping."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def step(networks: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        AcceleratorState._reset_state(True)  # a process has one, which another row made
        accelerator = Accelerator(cpu=True, mixed_precision="bf16" if name == "bf16" else "no")
        network, optimizer = accelerator.prepare(networks["network"], torch.optim.SGD(networks.parameters(), lr=1e-2))
        loss = nn.functional.cross_entropy(network(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        accelerator.unwrap_model(network, keep_fp32_wrapper=False)
        return loss

    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(inplace=True), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))  # fmt: skip
    networks = nn.ModuleDict({"network": network})
    return Program(networks, (torch.randn(4 + k, 3, 32, 32), torch.randint(0, 10, (4 + k,))), step)


def tabular(name: str, k: int) -> Program:
    """TabNet with ghost batch normalization and its sparsemax, or entmax."""
    from pytorch_tabnet.tab_network import TabNet, TabNetPretraining

    groups, x = torch.eye(32), torch.randn(256 + 64 * k, 32)
    sizes = {"n_d": 16, "n_a": 16, "n_steps": 3, "virtual_batch_size": 64, "group_attention_matrix": groups}
    if name == "TabNetPretraining":
        model = TabNetPretraining(32, **sizes)
        return Program(model, (x,), random="it masks features at random")
    return Program(TabNet(32, 4, **sizes, mask_type="entmax" if name.endswith("entmax") else "sparsemax"), (x,))


def equivariant(name: str, k: int) -> Program:
    """Layers of e3nn, and its network for clouds of points."""
    from e3nn import nn as enn
    from e3nn import o3
    from e3nn.math import soft_one_hot_linspace

    irreps = o3.Irreps("8x0e + 8x1o + 4x2e")
    if name == "tensor-product":
        product = o3.FullyConnectedTensorProduct(irreps, irreps, irreps)
        return Program(product, (irreps.randn(32 + k, -1), irreps.randn(32 + k, -1)))
    if name == "gates":
        gate = enn.Gate("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
        model = nn.Sequential(o3.Linear(irreps, gate.irreps_in), gate, o3.Linear(gate.irreps_out, "4x0e + 2x1o"))
        return Program(model, (irreps.randn(32 + k, -1),))
    return Program(_PointCloud(o3, enn, soft_one_hot_linspace), (torch.randn(16 + k, 3) * 1.5,))


class _PointCloud(nn.Module):
    """A convolution over neighbours: spherical harmonics, a radial network, a tensor product, a sum at the ends."""

    def __init__(self, o3: Any, enn: Any, basis: Any) -> None:
        super().__init__()
        self.spherical_harmonics, self.basis = o3.spherical_harmonics, basis
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.product = o3.FullyConnectedTensorProduct("4x0e", self.harmonics, "8x0e + 4x1o", shared_weights=False)
        self.radial = enn.FullyConnectedNet([10, 32, self.product.weight_numel], torch.relu)
        self.embedding = nn.Parameter(torch.randn(4))
        self.out = o3.Linear("8x0e + 4x1o", "1x0e")

    def forward(self, position: torch.Tensor) -> torch.Tensor:
        near = (torch.cdist(position, position) < 3.0).fill_diagonal_(False)
        source, target = near.nonzero(as_tuple=True)
        vectors = position[target] - position[source]
        lengths = self.basis(vectors.norm(dim=1), 0.0, 3.0, 10, basis="smooth_finite", cutoff=True) * 10**0.5
        angles = self.spherical_harmonics(self.harmonics, vectors, True, normalization="component")
        messages = self.product(self.embedding.expand(len(source), 4), angles, self.radial(lengths))
        gathered = messages.new_zeros(len(position), messages.shape[1]).index_add_(0, target, messages)
        return self.out(gathered / len(position) ** 0.5)


def crystals(name: str, k: int) -> Program:
    """CHGNet with the weights that its wheel brings, on a cell of rock salt; forces are derivatives by positions."""
    from chgnet.model import CHGNet
    from pymatgen.core import Lattice, Structure

    model = CHGNet.load(verbose=False, use_device="cpu")
    structure = Structure.from_spacegroup("Fm-3m", Lattice.cubic(5.69 + 0.05 * k), ["Na", "Cl"], [[0, 0, 0], [0.5] * 3])
    structure.perturb(0.05 + 0.01 * k)
    graph = model.graph_converter(structure)

    def step(network: Any) -> Any:
        found = network([graph], task="e" if name == "energy" else "efs")
        loss = found["e"].sum()
        if name == "forces":
            loss = loss + torch.cat(found["f"]).square().mean()
        loss.backward()
        return loss.detach()

    return Program(model, (), step)


def agent(name: str, k: int) -> Program:
    """The networks of an agent and the loss that its ``train`` makes, on a batch as its buffer gives it."""
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy
    from stable_baselines3.dqn.policies import DQNPolicy
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    batch = 64 + 16 * k
    pixels = gymnasium.spaces.Box(0, 255, (4, 84, 84), "uint8")
    vector, box = gymnasium.spaces.Box(-1, 1, (8,)), gymnasium.spaces.Box(-1, 1, (2,))
    discrete, states = gymnasium.spaces.Discrete(4), torch.randn(batch, 8)
    if name in ("PPO-mlp", "PPO-cnn", "A2C"):
        cnn = name == "PPO-cnn"
        policy = (ActorCriticCnnPolicy if cnn else ActorCriticPolicy)(
            pixels if cnn else vector, discrete, lambda _: 3e-4
        )
        seen = torch.randint(0, 256, (8 + k, 4, 84, 84), dtype=torch.uint8) if cnn else states
        return Program(_Acting(policy, name != "A2C"), (seen, *_returns(len(seen))), _loss_of)
    kinds: dict[str, Any] = {"DQN": (DQNPolicy, discrete), "SAC": (SACPolicy, box), "TD3": (TD3Policy, box)}
    kind, actions = kinds[name]
    policy = kind(vector, actions, lambda _: 3e-4)
    if name == "DQN":
        return Program(policy.q_net, (states,))
    return Program(_Critics(policy), (states, torch.rand(batch, 2) * 2 - 1, torch.randn(batch, 1)), _loss_of)


def _returns(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 4, (batch,)), torch.randn(batch) - 1.4, torch.randn(batch), torch.randn(batch)


def _loss_of(network: Any, *inputs: torch.Tensor) -> Any:
    loss = network(*inputs)
    loss.backward()
    return loss


class _Acting(nn.Module):
    def __init__(self, policy: nn.Module, clipped: bool) -> None:
        super().__init__()
        self.policy, self.clipped = policy, clipped

    def forward(self, seen, actions, before, advantages, returns):  # type: ignore[no-untyped-def]
        values, log_probability, entropy = self.policy.evaluate_actions(seen, actions)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = torch.exp(log_probability - before) if self.clipped else log_probability
        gain = advantages * ratio
        if self.clipped:
            gain = torch.min(gain, advantages * torch.clamp(ratio, 0.8, 1.2))
        return -gain.mean() + 0.5 * nn.functional.mse_loss(returns, values.flatten()) - 0.01 * entropy.mean()


class _Critics(nn.Module):
    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.critic = policy.critic

    def forward(self, states, actions, targets):  # type: ignore[no-untyped-def]
        return 0.5 * sum(nn.functional.mse_loss(q, targets) for q in self.critic(states, actions))


def forecaster(name: str, k: int) -> Program:
    """A model made from a data set of ten series, and the loss of one batch."""
    import numpy as np
    import pandas as pd
    import pytorch_forecasting as pf

    times = np.arange(60)
    series = [{"time": times, "value": np.sin(times / (3 + s)) + s, "series": str(s)} for s in range(10)]
    frame = pd.concat(map(pd.DataFrame, series), ignore_index=True)
    univariate = name in ("NBeats", "NHiTS")
    known = {} if univariate else {"time_varying_known_reals": ["time"]}
    data = pf.TimeSeriesDataSet(frame, time_idx="time", target="value", group_ids=["series"], max_encoder_length=24, max_prediction_length=6, time_varying_unknown_reals=["value"], **known)  # fmt: skip
    model = getattr(pf, name).from_dataset(data)
    x, _ = next(iter(data.to_dataloader(train=False, batch_size=16 + 8 * k, num_workers=0)))
    return Program(model, (x,))
