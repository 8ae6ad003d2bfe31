"""The model card, by this package and by transformers after the same run."""

from __future__ import annotations

import transformers

import mps_trainer

from .test_search import make


def test_the_card_is_that_of_transformers_and_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cards = []
    for library in (transformers, mps_trainer):
        trainer = make(library, tmp_path / library.__name__ / "model", save_strategy="no")
        trainer.train()
        trainer.create_model_card(model_name="line", tags=["tiny"], license="mit", finetuned_from="base/line")
        cards.append((tmp_path / library.__name__ / "model" / "README.md").read_text())
    assert "Validation Loss" in cards[1]
    assert cards[1] == cards[0]
