"""Image models of ``timm``: the names of PyTorch's benchmark dashboard, and one of each further family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.world.catalogue import Row
from benchmarks.world.program import Program

DASHBOARD = """
adv_inception_v3 beit_base_patch16_224 botnet26t_256 cait_m36_384 coat_lite_mini convit_base convmixer_768_32
convnext_base crossvit_9_240 cspdarknet53 deit_base_distilled_patch16_224 dla102 dm_nfnet_f0 dpn107
eca_botnext26ts_256 eca_halonext26ts ese_vovnet19b_dw fbnetc_100 fbnetv3_b gernet_l ghostnet_100
gluon_inception_v3 gmixer_24_224 gmlp_s16_224 hrnet_w18 inception_v3 jx_nest_base lcnet_050 levit_128
mixer_b16_224 mixnet_l mnasnet_100 mobilenetv2_100 mobilenetv3_large_100 mobilevit_s nfnet_l0 pit_b_224
pnasnet5large poolformer_m36 regnety_002 repvgg_a2 res2net101_26w_4s res2net50_14w_8s res2next50 resmlp_12_224
resnest101e rexnet_100 sebotnet33ts_256 selecsls42b spnasnet_100 swin_base_patch4_window7_224
swsl_resnext101_32x16d tf_efficientnet_b0 tf_mixnet_l tinynet_a tnt_s_patch16_224 twins_pcpvt_base visformer_small
vit_base_patch16_224 volo_d1_224 xcit_large_24_p8_224
"""
FAMILIES = """
resnet18 resnet50 wide_resnet50_2 seresnet50 resnext50_32x4d densenet121 vgg11_bn efficientnet_b0 efficientnetv2_rw_t
efficientformer_l1 efficientformerv2_s0 efficientvit_b0 edgenext_xx_small fastvit_t8 focalnet_tiny_srf gcvit_xxtiny
ghostnetv2_100 hardcorenas_a hgnet_tiny hiera_tiny_224 inception_next_tiny inception_resnet_v2 inception_v4
maxvit_nano_rw_256 mambaout_femto mobilenetv4_conv_small mobileone_s0 mvitv2_tiny
naflexvit_base_patch16_gap nextvit_small pvt_v2_b0 regnetx_002 repghostnet_050 repvit_m0_9 rdnet_tiny resnetv2_50
sequencer2d_s skresnet18 starnet_s1 swiftformer_xs swinv2_tiny_window8_256 swinv2_cr_tiny_224 semnasnet_075
tiny_vit_5m_224 tresnet_m tf_efficientnetv2_b0 vitamin_small_224 xception41 cs3darknet_s davit_tiny deit3_small_patch16_224
eva02_tiny_patch14_224 convnextv2_atto coatnet_nano_rw_224 shvit_s1 lambda_resnet26t halonet26t bat_resnext26ts
"""
RENAMED = {
    "adv_inception_v3": "inception_v3.tf_adv_in1k",
    "gluon_inception_v3": "inception_v3.gluon_in1k",
    "jx_nest_base": "nest_base_jx",
    "swsl_resnext101_32x16d": "resnext101_32x16d",
}
DEPTHS = {
    "cait_m36_384": {"depth": 2, "depth_token_only": 1},
    "beit_base_patch16_224": {"depth": 4},
    "deit_base_distilled_patch16_224": {"depth": 4},
    "vit_base_patch16_224": {"depth": 4},
    "xcit_large_24_p8_224": {"depth": 2},
    "resnest101e": {"layers": (3, 4, 4, 3)},
}


def rows() -> Iterator[Row]:
    for name in dict.fromkeys(f"{DASHBOARD} {FAMILIES}".split()):
        yield Row("timm", name, partial(image_model, name), "vision")


def image_model(name: str, k: int) -> Program:
    """The model without trained weights, and images of its size; later sizes have more images."""
    import timm

    model = timm.create_model(RENAMED.get(name, name), pretrained=False, **DEPTHS.get(name, {}))
    _, side, _ = model.default_cfg["input_size"]
    return Program(model, (torch.randn(2 + k, 3, side, side),))
