"""transformers' models get the masks that they would make themselves, and nobody waits for the device."""

import pytest
import torch
from transformers import BertForSequenceClassification, masking_utils

from mps_trainer import Trainer
from mps_trainer.model.patches.masks import AttentionMasks
from tests.tiny import tiny

BERT, GPT2, BART = (f"{name}ForSequenceClassification" for name in ("Bert", "GPT2", "Bart"))


def batch(padded):
    tokens = torch.arange(3, 35).reshape(4, 8) % 40 + 3
    tokens[:, -1] = 2
    mask = torch.ones(4, 8, dtype=torch.long)
    if padded:
        tokens[1, 5:], mask[1, 5:], tokens[1, 4] = 0, 0, 2
    return {"input_ids": tokens, "attention_mask": mask}


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", [BERT, GPT2, BART])
def test_outputs_are_those_with_the_masks_of_transformers_and_nobody_waits(mps, kind, attention, padded):
    model, inputs = tiny(kind, attn_implementation=attention).eval(), batch(padded)
    expected = model(**inputs).logits.detach()
    model.to("mps")
    inputs = {name: tensor.to("mps") for name, tensor in inputs.items()}
    before = mps.counters()["blocking_reads"]
    with AttentionMasks(torch.device("mps")).in_use():
        found = model(**inputs).logits
    # another kernel of attention, which rounds otherwise, computes on the CPU
    waits = mps.counters()["blocking_reads"] - before
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
    if kind != BART and attention == "sdpa":
        before = mps.counters()["blocking_reads"]
        model(**inputs)
        assert mps.counters()["blocking_reads"] - before > waits == 0  # transformers by itself waits


def test_a_mask_function_of_ones_own_is_called_and_stays():
    functions, called = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, []

    def own(*args, **kwargs):
        called.append(kwargs["q_length"])
        return masking_utils.sdpa_mask(*args, **kwargs)

    functions["sdpa"] = own
    try:
        with AttentionMasks(torch.device("mps")).in_use():
            tiny(BERT)(**batch(padded=True))
        assert called == [8]
        assert functions["sdpa"] is own
    finally:
        del functions["sdpa"]


class HidingBert(BertForSequenceClassification):
    """Lets nobody attend to the last tokens of a batch that has no padding."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        attention_mask[:, 4:] = 0
        return super().forward(input_ids, attention_mask=attention_mask, labels=labels)


def test_a_mask_that_the_model_changes_counts(mps, make_args):
    model = tiny(HidingBert)
    examples = [{"input_ids": torch.arange(3, 11), "attention_mask": torch.ones(8, dtype=torch.long), "labels": 1}] * 8
    seen = []
    model.bert.encoder.layer[0].register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    Trainer(model, make_args(max_steps=1), train_dataset=examples).train()
    assert torch.isinf(seen[0][..., 4:]).all()
    assert not seen[0][..., :4].any()
