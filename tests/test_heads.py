"""One tiny random model for each head of transformers: check, fit and the simulated device run its training step.

These heads cannot be trained by a Trainer, or not here, and are left out:

- transformers has no loss for them: ImageMatting, ImageToImage, KeypointDetection, KeypointMatching, MaskGeneration,
  NormalEstimation, PointmapEstimation, PoseEstimation, TableRecognition, TextRecognition, TextToWaveform, Decision.
- RNNT and TDT need torchaudio for their loss.
- Backbone, TextEncoding, Image and Retrieval give embeddings without a loss.
- NextSentencePrediction and PreTraining of a BERT have the losses of SequenceClassification and MaskedLM.
- CausalImageModeling and MultimodalLM are CausalLM and ImageTextToText with other inputs.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

from mps_trainer import Trainer, cli
from mps_trainer.check import trace_step
from mps_trainer.fit.step import as_on_mps, largest_batch, measure_step
from tests.conftest import on_device

WORDS, LENGTH, SIDE = 40, 8, 32
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32, **IDS}
VISION = {**SIZES, "image_size": SIDE, "patch_size": 8}
SPEECH = {
    **SIZES,
    "vocab_size": 12,
    "conv_dim": (8, 8),
    "conv_kernel": (8, 4),
    "conv_stride": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_length": 2,
    "xvector_output_dim": 16,
    "tdnn_dim": (16, 16),
    "tdnn_kernel": (3, 1),
    "tdnn_dilation": (1, 1),
}
SEQ2SEQ = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}

Row = dict[str, Any]


def words(*shape: int) -> torch.Tensor:
    return torch.randint(5, WORDS, shape or (LENGTH,))


def text(**more: Any) -> Row:
    return {"input_ids": words(), "attention_mask": torch.ones(LENGTH, dtype=torch.long), **more}


def image(**more: Any) -> Row:
    return {"pixel_values": torch.randn(3, SIDE, SIDE), **more}


def speech(**more: Any) -> Row:
    return {"input_values": torch.randn(640), **more}


def some_class() -> torch.Tensor:
    return torch.tensor(1)


def boxes() -> Row:
    return {"class_labels": torch.tensor([1, 0]), "boxes": torch.rand(2, 4) * 0.4 + 0.1}


def masks() -> Row:
    return {"mask_labels": torch.randint(0, 2, (2, SIDE, SIDE)).float(), "class_labels": torch.tensor([1, 0])}


def bert() -> tf.BertConfig:
    return tf.BertConfig(**SIZES, **TEXT)


def vit(**more: Any) -> tf.ViTConfig:
    return tf.ViTConfig(**VISION, **more)


def wav2vec2(**more: Any) -> tf.Wav2Vec2Config:
    return tf.Wav2Vec2Config(**SPEECH, **IDS, layerdrop=0.0, **more)  # a layer that is left out needs no memory


def whisper() -> tf.WhisperConfig:
    audio = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16, "decoder_start_token_id": 1}
    return tf.WhisperConfig(**SEQ2SEQ, vocab_size=WORDS, begin_suppress_tokens=None, **audio, **IDS)


def clip() -> dict[str, Any]:
    return {"text_config": {**SIZES, **TEXT}, "vision_config": VISION, "projection_dim": 16}


def resnet() -> tf.ResNetConfig:
    stages = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return tf.ResNetConfig(embedding_size=8, out_features=["stage1", "stage2", "stage3", "stage4"], **stages)


def detr() -> tf.DetrConfig:
    heads = {
        "encoder_attention_heads": 8,
        "decoder_attention_heads": 8,
    }  # the mask head wants a multiple of 8 with d_model
    return tf.DetrConfig(**{**SEQ2SEQ, **heads}, backbone_config=resnet(), num_queries=4, num_labels=3)


def maskformer() -> nn.Module:
    sizes = {"fpn_feature_size": 32, "mask_feature_size": 32, "num_labels": 3}  # groups of 32
    decoder = tf.DetrConfig(**SEQ2SEQ, num_queries=4)
    return tf.MaskFormerForInstanceSegmentation(
        tf.MaskFormerConfig(backbone_config=resnet(), decoder_config=decoder, **sizes)
    )


def mask2former() -> nn.Module:
    sizes = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 24}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "dim_feedforward": 24, "num_attention_heads": 2}
    more = {"num_queries": 4, "train_num_points": 16, "num_labels": 3}
    return tf.Mask2FormerForUniversalSegmentation(
        tf.Mask2FormerConfig(backbone_config=resnet(), **sizes, **layers, **more)
    )


def segformer(kind: type) -> dict[str, Any]:
    stages = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}
    return kind(**stages, sr_ratios=[2, 2, 1, 1], decoder_hidden_size=16)


def grounding_dino() -> nn.Module:
    tiny = {"num_hidden_layers": 1, "vocab_size": 1100}  # it asks for the ids of [CLS], [SEP], . and ?
    words_of = tf.BertConfig(**{**SIZES, **TEXT, **tiny})
    stage = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "out_features": ["stage1"]}
    sizes = {
        **SEQ2SEQ,
        "d_model": 32,
        "decoder_layers": 2,  # transformers ties the boxes of the layers, and fails with one
        "num_queries": 4,
        "num_feature_levels": 2,
        "encoder_n_points": 2,
        "decoder_n_points": 2,
    }
    backbone = tf.ResNetConfig(**stage, layer_type="basic")
    return tf.GroundingDinoForObjectDetection(
        tf.GroundingDinoConfig(backbone_config=backbone, text_config=words_of, max_text_len=LENGTH, **sizes)
    )


def grounding_dino_row() -> Row:
    ids = torch.tensor([101, 5, 6, 1012, 7, 8, 1012, 102])  # [CLS], two descriptions that end with a period, [SEP]
    return text(**image(labels=boxes())) | {"input_ids": ids}


def tapas_row() -> Row:
    rows_and_columns = torch.stack([torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])] * 7, dim=-1) % 2
    return {**text(labels=torch.tensor([0, 0, 0, 0, 1, 1, 0, 0])), "token_type_ids": rows_and_columns}


def speecht5() -> nn.Module:
    sizes = {name.replace("d_model", "hidden_size"): size for name, size in SEQ2SEQ.items()}
    post = {"speech_decoder_prenet_units": 16, "speech_decoder_postnet_units": 16, "num_mel_bins": 8}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (8, 4), "conv_kernel": (8, 4), "speaker_embedding_dim": 8}
    return tf.SpeechT5ForTextToSpeech(tf.SpeechT5Config(vocab_size=WORDS, **sizes, **post, **convolutions))


def fastspeech2() -> nn.Module:
    sizes = {"hidden_size": 16, "encoder_linear_units": 16, "decoder_linear_units": 16, "vocab_size": WORDS}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "speech_decoder_postnet_units": 16, "num_mel_bins": 8}
    predictors = {f"{name}_predictor_channels": 16 for name in ("duration", "pitch", "energy")}
    return tf.FastSpeech2ConformerModel(
        tf.FastSpeech2ConformerConfig(**sizes, **layers, **predictors, speech_decoder_postnet_layers=2)
    )


def llava() -> nn.Module:
    vision = tf.CLIPVisionConfig(**VISION)
    language = tf.LlamaConfig(**SIZES, **TEXT)
    return tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(vision_config=vision, text_config=language, image_token_index=4, vision_feature_layer=-1)
    )


def llava_row() -> Row:
    ids = torch.cat([torch.full(((SIDE // 8) ** 2,), 4), words()])
    return image(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)


def series() -> tf.PatchTSTConfig:
    sizes = {"d_model": 16, "ffn_dim": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "num_targets": 3}
    return tf.PatchTSTConfig(num_input_channels=2, context_length=16, patch_length=4, patch_stride=4, **sizes)


def timesfm() -> nn.Module:
    sizes = {**SIZES, "head_dim": 8, "patch_length": 8, "context_length": 16, "horizon_length": 8}
    return tf.TimesFmModelForPrediction(tf.TimesFmConfig(**sizes, quantiles=[0.1, 0.5, 0.9]))


Head = Callable[[], tuple[nn.Module, Row]]
HEADS: dict[str, Head] = {
    "SequenceClassification": lambda: (tf.BertForSequenceClassification(bert()), text(labels=some_class())),
    "SequenceClassification, several labels": lambda: (
        tf.BertForSequenceClassification(tf.BertConfig(**SIZES, **TEXT, problem_type="multi_label_classification")),
        text(labels=torch.tensor([1.0, 0.0])),
    ),
    "SequenceClassification of a decoder": lambda: (
        tf.LlamaForSequenceClassification(tf.LlamaConfig(**SIZES, **TEXT)),
        text(labels=some_class()),
    ),
    "TokenClassification": lambda: (
        tf.BertForTokenClassification(bert()),
        text(labels=torch.randint(0, 2, (LENGTH,))),
    ),
    "QuestionAnswering": lambda: (
        tf.BertForQuestionAnswering(bert()),
        text(start_positions=torch.tensor(2), end_positions=torch.tensor(3)),
    ),
    "MultipleChoice": lambda: (
        tf.BertForMultipleChoice(bert()),
        {"input_ids": words(3, LENGTH), "attention_mask": torch.ones(3, LENGTH), "labels": some_class()},
    ),
    "MaskedLM": lambda: (tf.BertForMaskedLM(bert()), text(labels=words())),
    "CausalLM": lambda: (tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, **TEXT)), text(labels=words())),
    "CausalLM, mixture of experts": lambda: (
        tf.MixtralForCausalLM(
            tf.MixtralConfig(**SIZES, **TEXT, num_key_value_heads=2, num_local_experts=4, output_router_logits=True)
        ),
        text(labels=words()),
    ),
    "CausalLM, state space": lambda: (
        tf.MambaForCausalLM(tf.MambaConfig(vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, state_size=4)),
        {"input_ids": words(), "labels": words()},
    ),
    "Seq2SeqLM": lambda: (
        tf.T5ForConditionalGeneration(
            tf.T5Config(
                vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
            )
        ),
        text(labels=words()),
    ),
    "TableQuestionAnswering": lambda: (
        tf.TapasForQuestionAnswering(tf.TapasConfig(**SIZES, **TEXT, type_vocab_sizes=[3] * 7)),
        tapas_row(),
    ),
    "DocumentQuestionAnswering": lambda: (
        tf.LayoutLMForQuestionAnswering(tf.LayoutLMConfig(**SIZES, **TEXT)),
        text(
            bbox=torch.randint(0, 9, (LENGTH, 4)).cumsum(-1),
            start_positions=torch.tensor(2),
            end_positions=torch.tensor(3),
        ),
    ),
    "ImageClassification": lambda: (tf.ViTForImageClassification(vit()), image(labels=some_class())),
    "ImageClassification, convolutions": lambda: (
        tf.ResNetForImageClassification(resnet()),
        image(labels=some_class()),
    ),
    "ImageSegmentation": lambda: (
        tf.DetrForSegmentation(detr()),
        image(labels={**boxes(), "masks": masks()["mask_labels"]}),
    ),
    "SemanticSegmentation": lambda: (
        tf.SegformerForSemanticSegmentation(segformer(tf.SegformerConfig)),
        image(labels=torch.randint(0, 2, (SIDE, SIDE))),
    ),
    "InstanceSegmentation": lambda: (maskformer(), image(**masks())),
    "UniversalSegmentation": lambda: (mask2former(), image(**masks())),
    "ObjectDetection": lambda: (
        tf.YolosForObjectDetection(
            tf.YolosConfig(**{**VISION, "image_size": [SIDE, SIDE]}, num_detection_tokens=4, num_labels=3)
        ),
        image(labels=boxes()),
    ),
    "ZeroShotObjectDetection": lambda: (grounding_dino(), grounding_dino_row()),
    "ZeroShotImageClassification": lambda: (tf.CLIPModel(tf.CLIPConfig(**clip())), text(**image())),
    "DepthEstimation": lambda: (
        tf.GLPNForDepthEstimation(segformer(tf.GLPNConfig)),
        image(labels=torch.rand(SIDE, SIDE) + 0.1),
    ),
    "MaskedImageModeling": lambda: (
        tf.ViTForMaskedImageModeling(vit(encoder_stride=8)),
        image(bool_masked_pos=torch.arange((SIDE // 8) ** 2) % 2 == 0),
    ),
    "PreTraining of images": lambda: (
        tf.ViTMAEForPreTraining(
            tf.ViTMAEConfig(
                **VISION,
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_num_attention_heads=2,
                decoder_intermediate_size=24,
            )
        ),
        image(),
    ),
    "VideoClassification": lambda: (
        tf.VideoMAEForVideoClassification(tf.VideoMAEConfig(**VISION, num_frames=2)),
        {"pixel_values": torch.randn(2, 3, SIDE, SIDE), "labels": some_class()},
    ),
    "ImageTextToText": lambda: (llava(), llava_row()),
    "VisualQuestionAnswering": lambda: (
        tf.ViltForQuestionAnswering(tf.ViltConfig(**VISION, **{**TEXT, "max_position_embeddings": 32}, num_labels=3)),
        text(**image(labels=torch.rand(3))),
    ),
    "AudioClassification": lambda: (
        tf.Wav2Vec2ForSequenceClassification(wav2vec2(classifier_proj_size=8)),
        speech(labels=some_class()),
    ),
    "AudioFrameClassification": lambda: (
        tf.Wav2Vec2ForAudioFrameClassification(wav2vec2()),
        speech(labels=nn.functional.one_hot(torch.randint(0, 2, (20,)), 2)),
    ),
    "AudioXVector": lambda: (tf.Wav2Vec2ForXVector(wav2vec2()), speech(labels=some_class())),
    "CTC": lambda: (tf.Wav2Vec2ForCTC(wav2vec2()), speech(labels=torch.randint(3, 12, (5,)))),
    "PreTraining of audio": lambda: (
        tf.Wav2Vec2ForPreTraining(wav2vec2(num_negatives=3, codevector_dim=16, proj_codevector_dim=16)),
        speech(
            mask_time_indices=torch.arange(20) % 2 == 0,
            sampled_negative_indices=torch.randint(0, 20, (20, 3)),
        ),
    ),
    "SpeechSeq2Seq": lambda: (
        tf.WhisperForConditionalGeneration(whisper()),
        {"input_features": torch.randn(8, 16), "labels": words()},
    ),
    "TextToSpectrogram": lambda: (
        speecht5(),
        text(labels=torch.randn(6, 8), speaker_embeddings=torch.randn(8)),
    ),
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
        tf.PatchTSTForClassification(series()),
        {"past_values": torch.randn(16, 2), "target_values": some_class()},
    ),
    "TimeSeriesRegression": lambda: (
        tf.PatchTSTForRegression(series()),
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
    # Each wait is at a line of transformers, not of the Trainer.
    assert {read.where.library for read in report.blocking_reads} <= {"transformers"}


@pytest.mark.parametrize("head", HEADS)
def test_the_simulated_device_trains_as_the_cpu_and_needs_the_memory_that_fit_computes(head, make):
    expected = make(head).train().training_loss
    assert 0 < expected < math.inf
    trainer = make(head)
    with as_on_mps():
        computed = measure_step(trainer, largest_batch(trainer, 1)).bytes_peak
    gc.collect()
    with on_device("mps", fallback=False, same_draws_as_cpu=True) as mps:
        before = mps.counters()["bytes_live"]  # of other tests
        mps.reset()
        found = make(head, use_cpu=False).train().training_loss
        needed = mps.report().bytes_peak - before
    assert found == pytest.approx(expected, rel=1e-4)
    # In models this small, the copy of the next batch and copies of single gradients are up to a fifth of all.
    assert computed == pytest.approx(needed, rel=0.25)


def test_fit_prints_the_memory_of_a_wav2vec2(tmp_path, monkeypatch, capfd):
    """The model has no weights inside the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # as the command sets it, and taken back
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "train.py").write_text(WAV2VEC2)
    assert cli.main(["fit", "train.py"]) == 0
    printed = capfd.readouterr().out
    assert "A training step of Wav2Vec2ForCTC needs" in printed
    assert "gradient_checkpointing=True" in printed


WAV2VEC2 = """
import torch
from transformers import Wav2Vec2ForCTC
from mps_trainer import Trainer, TrainingArguments
from tests.test_heads import speech, wav2vec2

rows = [speech(labels=torch.randint(3, 12, (5,))) for _ in range(2)]
Trainer(Wav2Vec2ForCTC(wav2vec2()), TrainingArguments("out"), train_dataset=rows).train()
"""
