"""A model whose weights Accelerate keeps on disk or on the host stays where they are."""

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from transformers import BertConfig, BertForSequenceClassification, T5Config, T5ForConditionalGeneration

from mps_trainer import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer
from tests.conftest import logged

pytestmark = pytest.mark.every_device

BERT = BertConfig(
    vocab_size=64,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
ROWS = [{"input_ids": [i % 60 + 1, 2, 3], "labels": i % 2} for i in range(16)]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    BertForSequenceClassification(BERT).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def offloaded(saved, device, tmp_path):
    """The saved model, with its second layer on disk."""
    parts = ("bert.embeddings", "bert.encoder.layer.0", "bert.pooler", "dropout", "classifier")
    places = {**dict.fromkeys(parts, device), "bert.encoder.layer.1": "disk"}
    return BertForSequenceClassification.from_pretrained(saved, device_map=places, offload_folder=tmp_path / "disk")


def places(model):
    return [parameter.device.type for parameter in model.parameters()]


def test_offloaded_model_evaluates_and_predicts_as_another(offloaded, saved, make_args):
    before = places(offloaded)
    plain = Trainer(BertForSequenceClassification.from_pretrained(saved), make_args(), eval_dataset=ROWS)
    trainer = Trainer(offloaded, make_args(), eval_dataset=ROWS)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], abs=1e-6)
    ours, theirs = (each.predict(ROWS).predictions for each in (trainer, plain))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert places(offloaded) == before
    assert "meta" in before


def test_adapters_on_an_offloaded_model_train_as_on_another(offloaded, saved, make_args):
    peft = pytest.importorskip("peft")

    def trained(model):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=2, target_modules=["query"], layers_to_transform=[0])
        trainer = Trainer(
            peft.get_peft_model(model, config), make_args(max_steps=3, learning_rate=0.1), train_dataset=ROWS
        )
        trainer.train()
        return logged(trainer, "loss")

    plain = trained(BertForSequenceClassification.from_pretrained(saved))
    assert trained(offloaded) == pytest.approx(plain, abs=1e-6)
    assert len(set(plain)) == 3


def test_model_offloaded_to_the_host_predicts(saved, device, make_args):
    plain = Trainer(BertForSequenceClassification.from_pretrained(saved), make_args()).predict(ROWS).predictions
    model = cpu_offload(BertForSequenceClassification.from_pretrained(saved), execution_device=torch.device(device))
    np.testing.assert_allclose(Trainer(model, make_args()).predict(ROWS).predictions, plain, atol=1e-6)


def test_offloaded_model_generates(device, tmp_path):
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0)
    torch.manual_seed(0)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "saved")
    places = dict.fromkeys(("shared", "encoder", "decoder", "lm_head"), device)
    places = {**places, "encoder.block.1": "disk", "decoder.block.1": "disk"}
    del places["encoder"], places["decoder"]
    for stack in ("encoder", "decoder"):
        for part in ("embed_tokens", "block.0", "final_layer_norm", "dropout"):
            places[f"{stack}.{part}"] = device

    def generated(**settings):
        args = Seq2SeqTrainingArguments(
            str(tmp_path / "run"), use_cpu=device == "cpu", disable_tqdm=True, report=False, predict_with_generate=True
        )
        model = T5ForConditionalGeneration.from_pretrained(tmp_path / "saved", **settings)
        rows = [{"input_ids": [3 + i, 4, 5], "labels": [3, 4]} for i in range(4)]
        return Seq2SeqTrainer(model, args).predict(rows).predictions

    plain = generated()
    np.testing.assert_array_equal(generated(device_map=places, offload_folder=tmp_path / "disk"), plain)
