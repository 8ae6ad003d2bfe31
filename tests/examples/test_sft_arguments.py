"""run_sft.py and train_bi_encoder.py choose arguments by the device and refuse some flags.

tests/libraries runs them with TRL and sentence-transformers.
"""

from __future__ import annotations

from types import SimpleNamespace

import bi_encoder_arguments
import pytest
import sft_arguments
import sft_model

from mps_trainer import MisconfigurationException
from mps_trainer.scripts import loading

from ..devices.machines import mac, pc

MACS = {"macOS 26": mac("26.0", "2.13.0"), "macOS 13": mac("13.7.4", "2.10.0")}


def settled(kind, *, facts, monkeypatch, use_peft=True, bf16=None, fp16=False, dtype=None, layers=None, packing=False):
    monkeypatch.setattr(sft_arguments, "gather_facts", lambda: facts)
    model = SimpleNamespace(use_peft=use_peft, dtype=dtype, lora_target_modules=layers)
    training = SimpleNamespace(
        bf16=not fp16 if bf16 is None else bf16,  # TRL fills it in so
        fp16=fp16,
        packing=packing,
        train_sampling_strategy="bucket_by_length",
        decision=SimpleNamespace(type=kind),
    )
    sft_arguments.settle(model, training, SimpleNamespace(bf16=bf16))
    return model, training


@pytest.mark.parametrize(
    ("kind", "machine", "flags", "bf16", "dtype"),
    [
        ("mps", "macOS 26", {}, True, "bfloat16"),
        ("mps", "macOS 13", {}, False, "float32"),
        ("mps", "macOS 13", {"bf16": True}, True, "bfloat16"),  # the Trainer refuses it
        ("mps", "macOS 26", {"bf16": False}, False, "float32"),
        ("mps", "macOS 26", {"fp16": True}, False, "float32"),
        ("mps", "macOS 26", {"use_peft": False}, True, "float32"),
        ("mps", "macOS 26", {"dtype": "float32"}, True, "float32"),
        ("cpu", "macOS 26", {}, False, "float32"),
    ],
)
def test_precision_follows_the_device(kind, machine, flags, bf16, dtype, monkeypatch):
    model, training = settled(kind, facts=MACS[machine], monkeypatch=monkeypatch, **flags)
    assert (training.bf16, model.dtype) == (bf16, dtype)


def test_adapters_default_to_all_linear_layers_and_packing_to_random_order(monkeypatch):
    model, training = settled("cpu", facts=pc(), monkeypatch=monkeypatch)
    assert (model.lora_target_modules, training.train_sampling_strategy) == ("all-linear", "bucket_by_length")
    model, training = settled("cpu", facts=pc(), monkeypatch=monkeypatch, layers=["q_proj"], packing=True)
    assert (model.lora_target_modules, training.train_sampling_strategy) == (["q_proj"], "random")
    model, _ = settled("cpu", facts=pc(), monkeypatch=monkeypatch, use_peft=False)
    assert model.lora_target_modules is None


@pytest.mark.parametrize(
    ("library", "extra", "use"),
    [
        ("trl", "libraries", lambda: sft_arguments.parse(["--embedded"])),
        ("sentence_transformers", "libraries", lambda: bi_encoder_arguments.parse(["--embedded"])),
        ("bitsandbytes", "quantization", lambda: sft_model.require_quantizer(bits(load_in_4bit=True))),
        ("bitsandbytes", "quantization", lambda: sft_model.require_quantizer(bits(load_in_8bit=True))),
    ],
)
def test_missing_library_is_named_with_its_extra(library, extra, use, monkeypatch):
    find = loading.find_spec
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(MisconfigurationException, match=rf"pip install 'mps_trainer\[{extra}\]'"):
        use()


def bits(load_in_4bit=False, load_in_8bit=False):
    return SimpleNamespace(load_in_4bit=load_in_4bit, load_in_8bit=load_in_8bit)


def test_tokens_beyond_the_vocabulary_are_refused():
    sft_model.require_fitting([[0, 9], [3]], 10, "folder")
    with pytest.raises(MisconfigurationException, match="10"):
        sft_model.require_fitting([[0, 9], [10]], 10, "folder")
