"""The memory of a step and what remedies leave of it, beside what the simulated mps device needs."""

import gc
import re

import pytest
import torch
import transformers

from mps_trainer import Trainer
from mps_trainer.fit import estimate
from mps_trainer.tools.fit.fit_report import GIB, FitReport, RemedyResult, higher_limit_of, limit_of, smallest_for
from mps_trainer.tools.fit.fit_report import SIZES as MACS
from mps_trainer.tools.fit.step import as_on_mps, largest_batch, measure_step
from tests.conftest import Classifier, assert_same_weights, examples, refusal, weights
from tests.tiny import tiny, with_lora

WORDS, LENGTH = 2048, 48
SIZES = {
    **{"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4},
    "max_position_embeddings": 512,
}


def llama(**settings):
    return tiny("LlamaForCausalLM", **{"tie_word_embeddings": True, **SIZES, **settings})


def adapted():
    return with_lora(llama(), r=8, target_modules="all-linear")


def bert():
    return tiny("BertForSequenceClassification", **SIZES)


def t5():
    return tiny("T5ForConditionalGeneration", **SIZES, d_kv=16, d_ff=128, num_decoder_layers=2, dropout_rate=0.1)


def vit():
    return tiny("ViTForImageClassification", **SIZES, image_size=64, patch_size=8)


def text(length: int = LENGTH):
    row = torch.randint(5, WORDS, (length,))
    return {"input_ids": row, "labels": row}


def sentence():
    return {**text(), "attention_mask": torch.ones(LENGTH, dtype=torch.long), "labels": torch.tensor(1)}


def padded(row):
    """Returns a row of which two thirds are padding."""
    seen = torch.arange(LENGTH) < LENGTH // 3
    labels = row["labels"] if row["labels"].dim() == 0 else torch.where(seen, row["labels"], -100)
    return {**row, "attention_mask": seen.long(), "labels": labels}


def image():
    return {"pixel_values": torch.rand(3, 64, 64), "labels": torch.tensor(1)}


def peak_of(trainer: Trainer) -> int:
    with as_on_mps():
        return measure_step(trainer, largest_batch(trainer, 16)).bytes_peak


CASES = {
    "Llama": (llama, text, {}),
    "Llama, accumulated": (llama, text, {"gradient_accumulation_steps": 2}),
    "Llama, checkpointed": (llama, text, {"gradient_checkpointing": True}),
    "Llama, attention in chunks": (llama, text, {"chunked_attention": True}),
    "Llama, LoRA, bf16": (adapted, text, {"bf16": True}),
    "BERT, bf16": (bert, sentence, {"bf16": True}),
    "BERT, fp16": (bert, sentence, {"fp16": True}),
    "BERT, attention in chunks": (bert, sentence, {"chunked_attention": True}),
    "Llama, padded": (llama, lambda: padded(text()), {}),
    "BERT, padded": (bert, lambda: padded(sentence()), {}),
    "BERT, padded, attention in chunks": (bert, lambda: padded(sentence()), {"chunked_attention": True}),
    "T5": (t5, lambda: {**sentence(), "labels": text(LENGTH // 2)["labels"]}, {}),
    "ViT": (vit, image, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_peak_is_that_of_a_run_on_the_simulated_device(case, mps, make_args):
    make_model, make_row, settings = CASES[case]
    gc.collect()
    before = mps.counters()["bytes_live"]  # other tests left them
    args = make_args(per_device_train_batch_size=4, max_steps=3, **settings)
    trainer = Trainer(make_model(), args, train_dataset=[make_row() for _ in range(24)])
    found = peak_of(trainer)
    mps.reset()
    trainer.train()
    assert found == pytest.approx(mps.report().bytes_peak - before, rel=0.02)


@pytest.mark.parametrize("make_model", [llama, bert])
def test_padding_that_is_left_out_needs_no_memory(make_model, make_args):
    row = padded(text() if make_model is llama else sentence())
    peaks = [
        peak_of(Trainer(make_model(), make_args(padding_free=choice), train_dataset=[row] * 8))
        for choice in (None, False)
    ]
    assert peaks[0] < 0.9 * peaks[1]


def test_the_trainer_stays_as_it_is(make_trainer):
    trainer = make_trainer(max_steps=2)
    before, state = weights(trainer.model), torch.get_rng_state()
    report = estimate(trainer)
    assert_same_weights(weights(trainer.model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert trainer.optimizer is None
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.train()
    assert report.parameters == report.trainable == sum(each.numel() for each in trainer.model.parameters())
    # 4 bytes for each number in the weights, twice that in the state of AdamW
    assert report.bytes_by_kind["weights"] == 4 * report.parameters
    assert report.bytes_by_kind["optimizer"] >= 8 * report.parameters
    assert report.model == "Classifier"  # such a model can take fewer remedies
    assert not any("checkpointing" in each.text or "LoRA" in each.text for each in report.remedies)


def test_a_remedy_that_the_model_does_not_support_is_left_out_without_a_traceback(make_args, capfd):
    model = with_lora(llama(), use_dora=True)  # reads the weight itself, which has another shape in 4 bits
    report = estimate(Trainer(model, make_args(), train_dataset=[text()] * 8))
    assert report.remedies
    assert not any("4 bits" in each.text for each in report.remedies)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("accumulated", [1, 8])
def test_the_largest_batch_is_computed(make_args, accumulated):
    rows = [text(length) for length in (8, 8, 8, 8, 8, 400, 8, 8)]
    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": accumulated}
    trainer = Trainer(llama(), make_args(train_sampling_strategy="sequential", **settings), train_dataset=rows)
    with as_on_mps():
        batch, first = largest_batch(trainer, 16), largest_batch(trainer, 2)
        assert (batch.shape, batch.looked_at) == ((1, 400), 8)
        assert (first.shape, first.looked_at) == ((1, 8), 2)
        assert measure_step(trainer, first).bytes_peak < measure_step(trainer, batch).bytes_peak


def test_remedies_leave_less_and_are_those_not_in_use(make_args, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.setattr("mps_trainer.tools.fit.remedies._takes_8_bits", lambda _: False)  # tests/libraries has torchao
    rows = [text() for _ in range(16)]
    report = estimate(Trainer(llama(), make_args(), train_dataset=rows))
    left = {each.text: each.bytes_peak for each in report.remedies}
    assert list(left) == [
        "bf16=True",
        "gradient_checkpointing=True",
        "per_device_train_batch_size=1, gradient_accumulation_steps=8",
        "LoRA (rank 8) on all linear layers, with PEFT",
        "the same, on weights loaded with dtype=torch.bfloat16",
        "LoRA on weights loaded in 4 bits",
        "all of these",
    ]
    assert max(left.values()) < report.bytes_peak
    assert left["all of these"] == min(left.values())
    settings = {"bf16": True, "gradient_checkpointing": True, "per_device_train_batch_size": 1}
    few = estimate(Trainer(adapted(), make_args(**settings), train_dataset=rows))
    assert [each.text for each in few.remedies] == [
        "weights loaded with dtype=torch.bfloat16, under the adapters",
        "weights loaded in 4 bits, under the adapters",
    ]
    for remedy, model, settings in (  # a run with a remedy needs what was said
        ("bf16=True", llama, {"bf16": True}),
        ("gradient_checkpointing=True", llama, {"gradient_checkpointing": True}),
        ("LoRA (rank 8) on all linear layers, with PEFT", adapted, {}),
    ):
        taken = peak_of(Trainer(model(), make_args(**settings), train_dataset=rows))
        assert left[remedy] == pytest.approx(taken, rel=0.01), remedy


def test_a_step_that_needs_values_is_refused_in_one_line(make_trainer, tmp_path):
    class Needs(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            if not model.head.weight.sum() > 100:
                raise ValueError("These weights are small.")

    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    other = transformers.Trainer(Classifier(), args, train_dataset=examples(8))
    for trainer, said in (
        (make_trainer({"kind": Needs}), r"^The step of Classifier failed with ValueError .*are small.*simulate"),
        (other, r"got transformers\.trainer\.Trainer\. Import"),  # whatever its data
        (make_trainer({"train_dataset": []}, max_steps=1), ""),
    ):
        assert re.search(said, refusal(estimate, trainer))


def test_the_table_and_the_dictionary(make_trainer):
    report = estimate(make_trainer(gradient_accumulation_steps=2))
    table = report.table()
    assert table.startswith("A training step of Classifier needs ")
    assert "2 batches accumulated" in table
    assert "Mac with       8 GB" in table
    found = report.to_dict()
    assert found["smallest_mac_gb"] == report.smallest_mac == 8
    assert sum(found["bytes_by_kind"].values()) == found["bytes_peak"]
    assert [mac["memory_gb"] for mac in found["macs"]] == [8, 16, 24, 32, 36, 48, 64, 96, 128]
    assert all(mac["fits"] for mac in found["macs"])
    remedies = (RemedyResult("bf16=True", 2**39), RemedyResult("fp16=True", 2**30))
    table = FitReport("Large", 1, 1, (1,), 1, 1, {"weights": 2**40}, remedies).table()  # more than any listed Mac
    assert re.findall(r"GiB  (.*GB)$", table, re.MULTILINE) == ["more than 128 GB", "from 8 GB"]


@pytest.mark.parametrize(("size", "gib"), [(16, 16 * 2 / 3), (32, 32 * 2 / 3), (36, 27), (64, 48), (128, 96)])
def test_metal_recommends_two_thirds_and_from_36_gb_on_three_quarters(size, gib):
    assert limit_of(size) == round(gib * GIB)


def test_a_step_fits_where_it_fits_at_the_lower_limit():
    assert all(higher_limit_of(size) > limit_of(size) for size in MACS if higher_limit_of(size))
    assert smallest_for(higher_limit_of(16)) == 24
    assert [smallest_for(limit_of(size)) for size in MACS] == list(MACS)
    assert [smallest_for(limit_of(size) + 1) for size in MACS] == [*MACS[1:], None]
