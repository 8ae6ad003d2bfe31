"""transformers' own callbacks run as they are."""

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from mps_trainer import MisconfigurationException
from tests.conftest import logged


def test_early_stopping_stops(make_trainer):
    trainer = make_trainer(
        {"callbacks": [EarlyStoppingCallback(early_stopping_patience=2)]},
        max_steps=20,
        learning_rate=3.0,  # far too high: the loss grows
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    )
    result = trainer.train()
    losses = logged(trainer, "eval_loss")
    best = losses.index(min(losses))
    assert result.global_step < 20
    assert result.global_step == best + 1 + 2


def test_callbacks_get_what_transformers_hands_them(make_trainer):
    seen = {}

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen.update(kwargs)

    trainer = make_trainer({"callbacks": [Look]}, max_steps=1)
    trainer.train()
    assert set(seen) == {
        "model",
        "processing_class",
        "optimizer",
        "lr_scheduler",
        "train_dataloader",
        "eval_dataloader",
    }
    assert seen["model"] is trainer.model
    assert seen["optimizer"] is trainer.optimizer
    assert len(seen["train_dataloader"]) == 5


def test_state_of_callbacks_is_in_the_checkpoint(make_trainer, tmp_path):
    make_trainer(
        {"callbacks": [EarlyStoppingCallback()]},
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
    ).train()
    text = (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text()
    assert "EarlyStoppingCallback" in text
    assert "TrainerControl" in text


def test_callbacks_can_be_added_and_removed(make_trainer):
    class Mine(TrainerCallback):
        pass

    trainer = make_trainer()
    trainer.add_callback(Mine)
    assert isinstance(trainer.pop_callback(Mine), Mine)
    mine = Mine()
    trainer.add_callback(mine)
    trainer.remove_callback(mine)
    assert trainer.pop_callback(Mine) is None


@pytest.mark.parametrize("name", ["nonsense", "clearml"])
def test_tracker_that_cannot_be_had_is_refused_in_one_line(make_trainer, name):
    with pytest.raises(MisconfigurationException, match=rf"report_to=\['{name}'\] cannot be used: .*") as refusal:
        make_trainer(report_to=name)
    assert "\n" not in str(refusal.value)
