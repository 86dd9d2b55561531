"""vit-pytorch, denoising-diffusion-pytorch and segmentation-models-pytorch, which need torchvision."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.world.catalogue import Row
from benchmarks.world.program import Program

_VIT = {"image_size": 224, "patch_size": 32, "num_classes": 100, "dim": 512, "depth": 2, "heads": 8, "mlp_dim": 1024}
VITS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vit.ViT", _VIT),
    ("simple_vit.SimpleViT", _VIT),
    ("deepvit.DeepViT", _VIT),
    ("cait.CaiT", {**_VIT, "cls_depth": 1}),
    ("t2t.T2TViT", {"dim": 256, "image_size": 224, "depth": 2, "heads": 8, "mlp_dim": 512, "num_classes": 100, "t2t_layers": ((7, 4), (3, 2), (3, 2))}),
    ("cct.CCT", {"img_size": 224, "embedding_dim": 256, "n_conv_layers": 2, "num_layers": 2, "num_heads": 4, "num_classes": 100}),
    ("cross_vit.CrossViT", {"image_size": 240, "num_classes": 100, "depth": 1, "sm_dim": 96, "lg_dim": 192, "sm_enc_depth": 1, "lg_enc_depth": 1}),
    ("pit.PiT", {"image_size": 224, "patch_size": 14, "dim": 128, "num_classes": 100, "depth": (1, 1, 1), "heads": 4, "mlp_dim": 256}),
    ("levit.LeViT", {"image_size": 224, "num_classes": 100, "stages": 3, "dim": (128, 192, 256), "depth": 1, "heads": (4, 6, 8), "mlp_mult": 2}),
    ("cvt.CvT", {"num_classes": 100, "s1_emb_dim": 32, "s2_emb_dim": 64, "s3_emb_dim": 128, "s3_depth": 1, "s2_depth": 1}),
    ("twins_svt.TwinsSVT", {"num_classes": 100, "s1_emb_dim": 32, "s2_emb_dim": 64, "s3_emb_dim": 128, "s4_emb_dim": 256, "s3_depth": 1}),
    ("regionvit.RegionViT", {"dim": (32, 64, 128, 256), "depth": (1, 1, 1, 1), "window_size": 7, "num_classes": 100}),
    ("crossformer.CrossFormer", {"num_classes": 100, "dim": (32, 64, 128, 256), "depth": (1, 1, 1, 1)}),
    ("nest.NesT", {"image_size": 224, "patch_size": 4, "dim": 48, "heads": 3, "num_hierarchies": 3, "block_repeats": (1, 1, 1), "num_classes": 100}),
    ("mobile_vit.MobileViT", {"image_size": (256, 256), "dims": [48, 60, 72], "channels": [16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384], "num_classes": 100}),
    ("max_vit.MaxViT", {"num_classes": 100, "dim_conv_stem": 32, "dim": 32, "dim_head": 16, "depth": (1, 1, 1), "window_size": 7}),
    ("xcit.XCiT", {**_VIT, "cls_depth": 1, "local_patch_kernel_size": 3}),
    ("parallel_vit.ViT", _VIT),
    ("vit_for_small_dataset.ViT", _VIT),
    ("rvt.RvT", {**_VIT, "use_rotary": True}),
)  # fmt: skip
_SIDES = {"cross_vit": 240, "mobile_vit": 256}
SEGMENTERS = "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer".split()


def rows() -> Iterator[Row]:
    for name, options in VITS:
        yield Row("vit-pytorch", name, partial(transformer, name, options), "vision")
    for name in SEGMENTERS:
        yield Row("segmentation-models-pytorch", name, partial(segmenter, name, "resnet18"), "vision")
    yield Row("segmentation-models-pytorch", "Unet-mobilenet", partial(segmenter, "Unet", "mobilenet_v2"), "vision")
    for name in ("Unet", "GaussianDiffusion", "ElucidatedDiffusion", "LearnedGaussianDiffusion"):
        modes = ("training", "inference") if name == "Unet" else ("training",)
        yield Row("denoising-diffusion-pytorch", name, partial(diffusion, name), "vision", modes)


def transformer(name: str, options: dict[str, Any], k: int) -> Program:
    """A class of a module of vit-pytorch."""
    module, _, kind = name.partition(".")
    made = getattr(importlib.import_module(f"vit_pytorch.{module}"), kind)(**options)
    side = _SIDES.get(module, 224)
    return Program(made, (torch.randn(2 + k, 3, side, side),))


def segmenter(name: str, encoder: str, k: int) -> Program:
    """Maps of one class."""
    import segmentation_models_pytorch as smp

    made = getattr(smp, name)(encoder_name=encoder, encoder_weights=None, classes=1)
    return Program(made, (torch.randn(2, 3, 128, 128 + 32 * k),))


def diffusion(name: str, k: int) -> Program:
    """The denoising network by itself, or the loss of one of the processes, which draw noise and times."""
    import denoising_diffusion_pytorch as ddp
    from denoising_diffusion_pytorch.learned_gaussian_diffusion import LearnedGaussianDiffusion

    learned, elucidated = name == "LearnedGaussianDiffusion", name == "ElucidatedDiffusion"
    own = {"learned_variance": learned, "random_fourier_features": elucidated}
    unet = ddp.Unet(dim=32, dim_mults=(1, 2, 4), flash_attn=False, **own)
    images = torch.rand(2 + k, 3, 32, 32)
    if name == "Unet":
        return Program(unet, (images, torch.randint(0, 100, (2 + k,))))
    kind = LearnedGaussianDiffusion if learned else getattr(ddp, name)
    options = {} if elucidated else {"timesteps": 100}
    return Program(kind(unet, image_size=32, **options), (images,), random="it draws noise and times")
