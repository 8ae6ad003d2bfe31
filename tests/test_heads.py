"""One tiny random model for each head of transformers: check, fit and the simulated device run its training step.

These heads cannot be trained by a Trainer, or not here, and are left out:

- transformers has no loss for them: ImageMatting, ImageToImage, KeypointDetection, KeypointMatching, MaskGeneration,
  NormalEstimation, PointmapEstimation, PoseEstimation, TableRecognition, TextRecognition, TextToWaveform, Decision.
- RNNT and TDT need torchaudio for their loss.
- Backbone, TextEncoding, Image and Retrieval give embeddings without a loss.
- NextSentencePrediction and PreTraining of a BERT have the losses of SequenceClassification and MaskedLM.
- CausalImageModeling and MultimodalLM are CausalLM and ImageTextToText with other inputs.
"""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

from mps_trainer import Trainer
from mps_trainer.check import trace_step
from mps_trainer.tools.fit.step import as_on_mps, largest_batch, measure_step
from tests import installed_torch
from tests.conftest import on_device
from tests.tiny import SIZES, tiny

LENGTH, SIDE = 8, 32
RESNET = tf.ResNetConfig(
    embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, layer_type="basic",
    out_features=["stage1", "stage2", "stage3", "stage4"],
)  # fmt: skip
VIT = {"image_size": SIDE, "patch_size": 8}
SPEECH = {
    "vocab_size": 12, "conv_dim": (8, 8), "conv_kernel": (8, 4), "conv_stride": (8, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2, "xvector_output_dim": 16,
    "tdnn_dim": (16, 16), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1), "classifier_proj_size": 8,
    "layerdrop": 0.0,  # a layer that is left out needs no memory
}  # fmt: skip
SEQ2SEQ = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2], "sr_ratios": [2, 2, 1, 1],
    "decoder_hidden_size": 16,
}  # fmt: skip
SERIES = {
    "d_model": 16, "ffn_dim": 24, "num_targets": 3, "num_input_channels": 2, "context_length": 16, "patch_length": 4,
    "patch_stride": 4,
}  # fmt: skip

Row = dict[str, Any]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(5, 40, shape or (LENGTH,))


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 2, shape)


def text(**more: Any) -> Row:
    return {"input_ids": words(), "attention_mask": torch.ones(LENGTH, dtype=torch.long), **more}


def image(**more: Any) -> Row:
    return {"pixel_values": torch.randn(3, SIDE, SIDE), **more}


def speech(**more: Any) -> Row:
    return {"input_values": torch.randn(640), **more}


def boxes() -> Row:
    return {"class_labels": torch.tensor([1, 0]), "boxes": torch.rand(2, 4) * 0.4 + 0.1}


def masks() -> Row:
    return {"mask_labels": classes(2, SIDE, SIDE).float(), "class_labels": torch.tensor([1, 0])}


def detr() -> nn.Module:
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}  # the mask head wants a multiple of 8
    settings = {**SEQ2SEQ, **heads, "num_queries": 4, "num_labels": 3}
    return tf.DetrForSegmentation(tf.DetrConfig(backbone_config=RESNET, **settings))


def maskformer() -> nn.Module:
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 3}  # groups of 32
    decoder = tf.DetrConfig(**SEQ2SEQ, num_queries=4)
    return tiny("MaskFormerForInstanceSegmentation", backbone_config=RESNET, decoder_config=decoder, **sizes)


def mask2former() -> nn.Module:
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 24}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "dim_feedforward": 24}
    more = {"num_queries": 4, "train_num_points": 16, "num_labels": 3}
    return tiny("Mask2FormerForUniversalSegmentation", backbone_config=RESNET, **sizes, **layers, **more)


def grounding_dino() -> nn.Module:
    # it asks for the ids of [CLS], [SEP], . and ?
    words_of = tf.BertConfig(**{**SIZES, "num_hidden_layers": 1, "vocab_size": 1100})
    stage = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "out_features": ["stage1"]}
    sizes = {
        **SEQ2SEQ, "d_model": 32, "num_queries": 4, "num_feature_levels": 2, "encoder_n_points": 2,
        "decoder_n_points": 2, "max_text_len": LENGTH,
        "decoder_layers": 2,  # transformers ties the boxes of the layers, and fails with one
    }  # fmt: skip
    backbone = tf.ResNetConfig(**stage, layer_type="basic")
    config = tf.GroundingDinoConfig(backbone_config=backbone, text_config=words_of, **sizes)
    return tf.GroundingDinoForObjectDetection(config)


def grounding_dino_row() -> Row:
    ids = torch.tensor([101, 5, 6, 1012, 7, 8, 1012, 102])  # [CLS], two descriptions that end with a period, [SEP]
    return text(**image(labels=boxes())) | {"input_ids": ids}


def tapas_row() -> Row:
    rows_and_columns = torch.stack([torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])] * 7, dim=-1) % 2
    return text(labels=torch.tensor([0, 0, 0, 0, 1, 1, 0, 0]), token_type_ids=rows_and_columns)


def speecht5() -> nn.Module:
    sizes = {name.replace("d_model", "hidden_size"): size for name, size in SEQ2SEQ.items()}
    post = {"speech_decoder_prenet_units": 16, "speech_decoder_postnet_units": 16, "num_mel_bins": 8}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (8, 4), "conv_kernel": (8, 4), "speaker_embedding_dim": 8}
    return tf.SpeechT5ForTextToSpeech(tf.SpeechT5Config(vocab_size=64, **sizes, **post, **convolutions))


def fastspeech2() -> nn.Module:
    sizes = {"hidden_size": 16, "encoder_linear_units": 16, "decoder_linear_units": 16, "vocab_size": 64}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "speech_decoder_postnet_units": 16, "num_mel_bins": 8}
    predictors = {f"{name}_predictor_channels": 16 for name in ("duration", "pitch", "energy")}
    settings = {**sizes, **layers, **predictors, "speech_decoder_postnet_layers": 2}
    return tf.FastSpeech2ConformerModel(tf.FastSpeech2ConformerConfig(**settings))


def llava() -> nn.Module:
    parts = {"vision_config": tf.CLIPVisionConfig(**SIZES, **VIT), "text_config": tf.LlamaConfig(**SIZES)}
    config = tf.LlavaConfig(**parts, image_token_index=4, vision_feature_layer=-1)
    return tf.LlavaForConditionalGeneration(config)


def llava_row() -> Row:
    ids = torch.cat([torch.full(((SIDE // 8) ** 2,), 4), words()])
    return image(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)


def mae() -> nn.Module:
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    return tiny("ViTMAEForPreTraining", **VIT, **decoder, decoder_intermediate_size=24)


def whisper() -> nn.Module:
    audio = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16, "decoder_start_token_id": 1}
    settings = {**SEQ2SEQ, **audio, "begin_suppress_tokens": None, "bos_token_id": 1, "eos_token_id": 2}
    return tiny("WhisperForConditionalGeneration", **settings)


def timesfm() -> nn.Module:
    sizes = {"head_dim": 8, "patch_length": 8, "context_length": 16, "horizon_length": 8}
    return tiny("TimesFmModelForPrediction", **sizes, quantiles=[0.1, 0.5, 0.9])


ONE = torch.tensor(1)
SPAN = {"start_positions": torch.tensor(2), "end_positions": torch.tensor(3)}
SEVERAL = {"problem_type": "multi_label_classification"}
EXPERTS = {"num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": True}
CODES = {"num_negatives": 3, "codevector_dim": 16, "proj_codevector_dim": 16}
YOLOS = {**VIT, "image_size": [SIDE, SIDE], "num_detection_tokens": 4, "num_labels": 3}

HEADS: dict[str, Callable[[], tuple[nn.Module, Row]]] = {
    "SequenceClassification": lambda: (tiny("BertForSequenceClassification"), text(labels=ONE)),
    "SequenceClassification, several labels": lambda: (
        tiny("BertForSequenceClassification", **SEVERAL),
        text(labels=torch.tensor([1.0, 0.0])),
    ),
    "SequenceClassification of a decoder": lambda: (tiny("LlamaForSequenceClassification"), text(labels=ONE)),
    "TokenClassification": lambda: (tiny("BertForTokenClassification"), text(labels=classes(LENGTH))),
    "QuestionAnswering": lambda: (tiny("BertForQuestionAnswering"), text(**SPAN)),
    "MultipleChoice": lambda: (
        tiny("BertForMultipleChoice"),
        {"input_ids": words(3, LENGTH), "attention_mask": torch.ones(3, LENGTH), "labels": ONE},
    ),
    "MaskedLM": lambda: (tiny("BertForMaskedLM"), text(labels=words())),
    "CausalLM": lambda: (tiny("LlamaForCausalLM"), text(labels=words())),
    "CausalLM, mixture of experts": lambda: (tiny("MixtralForCausalLM", **EXPERTS), text(labels=words())),
    "CausalLM, state space": lambda: (
        tiny("MambaForCausalLM", state_size=4),
        {"input_ids": words(), "labels": words()},
    ),
    "Seq2SeqLM": lambda: (tiny("T5ForConditionalGeneration", dropout_rate=0.1), text(labels=words())),
    "TableQuestionAnswering": lambda: (tiny("TapasForQuestionAnswering", type_vocab_sizes=[3] * 7), tapas_row()),
    "DocumentQuestionAnswering": lambda: (
        tiny("LayoutLMForQuestionAnswering"),
        text(bbox=torch.randint(0, 9, (LENGTH, 4)).cumsum(-1), **SPAN),
    ),
    "ImageClassification": lambda: (tiny("ViTForImageClassification", **VIT), image(labels=ONE)),
    "ImageClassification, convolutions": lambda: (tf.ResNetForImageClassification(RESNET), image(labels=ONE)),
    "ImageSegmentation": lambda: (detr(), image(labels={**boxes(), "masks": masks()["mask_labels"]})),
    "SemanticSegmentation": lambda: (
        tiny("SegformerForSemanticSegmentation", **SEGFORMER),
        image(labels=classes(SIDE, SIDE)),
    ),
    "InstanceSegmentation": lambda: (maskformer(), image(**masks())),
    "UniversalSegmentation": lambda: (mask2former(), image(**masks())),
    "ObjectDetection": lambda: (tiny("YolosForObjectDetection", **YOLOS), image(labels=boxes())),
    "ZeroShotObjectDetection": lambda: (grounding_dino(), grounding_dino_row()),
    "ZeroShotImageClassification": lambda: (
        tiny("CLIPModel", text_config=SIZES, vision_config={**SIZES, **VIT}, projection_dim=16),
        text(**image()),
    ),
    "DepthEstimation": lambda: (
        tiny("GLPNForDepthEstimation", **SEGFORMER),
        image(labels=torch.rand(SIDE, SIDE) + 0.1),
    ),
    "MaskedImageModeling": lambda: (
        tiny("ViTForMaskedImageModeling", **VIT, encoder_stride=8),
        image(bool_masked_pos=torch.arange((SIDE // 8) ** 2) % 2 == 0),
    ),
    "PreTraining of images": lambda: (mae(), image()),
    "VideoClassification": lambda: (
        tiny("VideoMAEForVideoClassification", **VIT, num_frames=2),
        {"pixel_values": torch.randn(2, 3, SIDE, SIDE), "labels": ONE},
    ),
    "ImageTextToText": lambda: (llava(), llava_row()),
    "VisualQuestionAnswering": lambda: (
        tiny("ViltForQuestionAnswering", **VIT, num_labels=3),
        text(**image(labels=torch.rand(3))),
    ),
    "AudioClassification": lambda: (tiny("Wav2Vec2ForSequenceClassification", **SPEECH), speech(labels=ONE)),
    "AudioFrameClassification": lambda: (
        tiny("Wav2Vec2ForAudioFrameClassification", **SPEECH),
        speech(labels=nn.functional.one_hot(classes(20), 2)),
    ),
    "AudioXVector": lambda: (tiny("Wav2Vec2ForXVector", **SPEECH), speech(labels=ONE)),
    "CTC": lambda: (tiny("Wav2Vec2ForCTC", **SPEECH), speech(labels=torch.randint(3, 12, (5,)))),
    "PreTraining of audio": lambda: (
        tiny("Wav2Vec2ForPreTraining", **SPEECH, **CODES),
        speech(mask_time_indices=torch.arange(20) % 2 == 0, sampled_negative_indices=torch.randint(0, 20, (20, 3))),
    ),
    "SpeechSeq2Seq": lambda: (whisper(), {"input_features": torch.randn(8, 16), "labels": words()}),
    "TextToSpectrogram": lambda: (speecht5(), text(labels=torch.randn(6, 8), speaker_embeddings=torch.randn(8))),
    "TextToSpectrogram with durations": lambda: (
        fastspeech2(),
        text(
            spectrogram_labels=torch.randn(2 * LENGTH, 8),
            duration_labels=torch.full((LENGTH,), 2),
            pitch_labels=torch.randn(LENGTH, 1),
            energy_labels=torch.randn(LENGTH, 1),
        ),
    ),
    "TimeSeriesClassification": lambda: (
        tiny("PatchTSTForClassification", **SERIES),
        {"past_values": torch.randn(16, 2), "target_values": ONE},
    ),
    "TimeSeriesRegression": lambda: (
        tiny("PatchTSTForRegression", **SERIES),
        {"past_values": torch.randn(16, 2), "target_values": torch.randn(3)},
    ),
    "TimeSeriesPrediction": lambda: (
        timesfm(),
        {"past_values": torch.randn(16), "freq": torch.tensor(0), "future_values": torch.randn(8)},
    ),
}


def collate(rows: list[Row]) -> Row:
    """Stacks tensors. Dictionaries, and masks and classes of objects, stay lists."""
    batch: Row = {"return_loss": True} if rows[0].keys() == {"input_ids", "attention_mask", "pixel_values"} else {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        stays = isinstance(first, dict) or name in ("mask_labels", "class_labels")
        batch[name] = values if stays else torch.stack(values)
    return batch


WITHOUT_LOSS_IN_EVALUATION = {"TextToSpectrogram with durations"}  # transformers gives none for this head there
NOT_BEFORE_2_15 = {"CausalLM, mixture of experts", "UniversalSegmentation"}


@pytest.fixture
def make(make_args):
    """A Trainer for two rows of a head; `settings` are arguments."""

    def of(head: str, **settings: Any) -> Trainer:
        torch.manual_seed(0)
        (model, row), (_, other) = HEADS[head](), HEADS[head]()
        evaluated = None if head in WITHOUT_LOSS_IN_EVALUATION else [row, other]
        defaults = {"per_device_train_batch_size": 2, "max_steps": 2, "logging_strategy": "no"}
        args = make_args(remove_unused_columns=False, **{**defaults, **settings})
        return Trainer(model, args, data_collator=collate, train_dataset=[row, other], eval_dataset=evaluated)

    return of


@pytest.mark.parametrize("head", HEADS)
def test_check_finds_nothing_that_fails(head, make):
    trainer = make(head)
    report = trace_step(trainer, fallback=False)
    assert report.ready, report
    phases = {"forward", "backward", "optimizer"} | ({"evaluation"} if trainer.eval_dataset else set())
    assert {use.phase for use in report.operators} == phases
    # Each wait is at a line of transformers, not of the Trainer. Before torch 2.15 some are where it calls backward().
    waits = [read for read in report.blocking_reads if read.phase != "backward" or installed_torch() >= (2, 15)]
    assert {read.where.library for read in waits} <= {"transformers"}


@pytest.mark.parametrize("head", HEADS)
def test_the_simulated_device_trains_as_the_cpu_and_needs_the_memory_that_fit_computes(head, make):
    if head in NOT_BEFORE_2_15 and installed_torch() < (2, 15):
        pytest.skip("torch before 2.15 does not train this head without its weights, or on the simulated device")
    expected = make(head).train().training_loss
    assert 0 < expected < math.inf
    trainer = make(head)
    with as_on_mps():
        computed = measure_step(trainer, largest_batch(trainer, 1)).bytes_peak
    gc.collect()
    with on_device("mps", fallback=False, same_draws_as_cpu=True) as mps:
        before = mps.counters()["bytes_live"]  # other tests left them
        mps.reset()
        found = make(head, use_cpu=False).train().training_loss
        needed = mps.report().bytes_peak - before
    assert found == pytest.approx(expected, rel=1e-4)
    # In models this small, the copy of the next batch and copies of single gradients are up to a fifth of all.
    assert computed == pytest.approx(needed, rel=0.25)
