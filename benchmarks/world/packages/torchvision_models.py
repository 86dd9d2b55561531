"""Models of ``torchvision``: the names of PyTorch's benchmark dashboard, and one of each family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.world.catalogue import Row
from benchmarks.world.program import Program

IMAGES = """
alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet1_0
mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnet152
resnext50_32x4d shufflenet_v2_x1_0 squeezenet1_1 swin_t swin_v2_t vgg11_bn vgg16 vit_b_16 wide_resnet50_2
"""
SEGMENTATION = "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large"
VIDEO = "mc3_18 mvit_v2_s r2plus1d_18 r3d_18 s3d swin3d_t"
DETECTION = """
fasterrcnn_mobilenet_v3_large_320_fpn fcos_resnet50_fpn keypointrcnn_resnet50_fpn maskrcnn_resnet50_fpn
retinanet_resnet50_fpn ssdlite320_mobilenet_v3_large ssd300_vgg16
"""
_SIDES = {"inception_v3": 299, "swin_v2_t": 256}


def rows() -> Iterator[Row]:
    kinds = ((IMAGES, classified), (SEGMENTATION, segmented), (VIDEO, filmed), (DETECTION, detected))
    for names, build in kinds:
        for name in names.split():
            yield Row("torchvision", name, partial(build, name), "vision")


def _model(name: str, **options: Any) -> torch.nn.Module:
    from torchvision.models import get_model

    return get_model(name, weights=None, **options)


def classified(name: str, k: int) -> Program:
    """Images in, classes out."""
    side = _SIDES.get(name, 224)
    return Program(_model(name), (torch.randn(2 + k, 3, side, side),))


def segmented(name: str, k: int) -> Program:
    """Images in, maps of classes out."""
    return Program(_model(name, weights_backbone=None), (torch.randn(2, 3, 128, 128 + 32 * k),))


def filmed(name: str, k: int) -> Program:
    """Clips in, classes out."""
    side, frames = (224, 16) if name in ("mvit_v2_s", "s3d") else (56, 8)
    return Program(_model(name), (torch.randn(1 + k, 3, frames, side, side),))


def detected(name: str, k: int) -> Program:
    """Images in; losses out in training, boxes in inference."""
    return Program(_model(name, weights_backbone=None, **_SMALL.get(name, {})), _scenes(k), step=_detection)


_SMALL = {"retinanet_resnet50_fpn": {"min_size": 160, "max_size": 224}, "fcos_resnet50_fpn": {"min_size": 160}}


def _scenes(k: int) -> tuple[Any, Any]:
    images = [torch.rand(3, 160, 192 + 16 * k), torch.rand(3, 144, 160)]
    boxes = torch.tensor([[10.0, 12.0, 60.0, 70.0], [30.0, 20.0, 120.0, 110.0]])
    masks = torch.zeros(2, 144, 160, dtype=torch.uint8)
    masks[:, 20:60, 30:70] = 1
    keypoints = torch.rand(2, 17, 3) * 50 + 10
    keypoints[..., 2] = 1
    target = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    return images, [
        {**target, "masks": torch.nn.functional.pad(masks, (0, image.shape[2] - 160, 0, image.shape[1] - 144)),
         "keypoints": keypoints}
        for image in images
    ]  # fmt: skip


def _detection(model: Any, images: Any, targets: Any) -> Any:
    if not model.training:
        return model(images)
    labels = 1 if getattr(getattr(model, "roi_heads", None), "keypoint_head", None) is not None else 2
    targets = [{**t, "labels": t["labels"].clamp(max=labels)} for t in targets]
    losses = model(images, targets)
    sum(losses.values()).backward()
    return losses
