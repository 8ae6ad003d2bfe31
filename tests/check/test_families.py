"""The check and the simulated device agree on models of transformers; `tools.check_families` compares all of them."""

import pytest

from tests.conftest import on_device
from tools.check_families import compared, judged

# transformers takes float32 on mps and float64 elsewhere in those that have a comment.
FAMILIES = [
    "aimv2",  # positions
    "bert",
    "clip",
    "d_fine",  # positions; the package mends a weight of one dimension
    "deimv2",  # the same
    "mixtral",
    "qwen2_vl",
    "rt_detr",  # positions
    "rt_detr_v2",  # positions
    "speech_to_text",
    "swin",
    "t5",
    "udop",  # boxes
    "vit_mae",  # positions
    "wav2vec2",
    "whisper",
]


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_both_judge_a_family_alike(family):
    check = judged(family, on_device=False)
    with on_device("mps", same_draws_as_cpu=True):
        device = judged(family, on_device=True)
    assert compared(check, device) == "agree"
    assert check["ready"]
