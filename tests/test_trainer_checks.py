"""A Trainer checks its arguments before it loads or moves anything."""

import pytest

from mps_trainer import MisconfigurationException, Trainer, trainer_checks


def test_a_subclass_with_its_own_loader_needs_no_eval_dataset(make_trainer):
    class Own(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            return super().get_eval_dataloader(self.train_dataset)

    make_trainer({"kind": Own, "eval_dataset": None}, eval_strategy="steps")


def test_metrics_by_batch_need_an_argument_for_the_last_batch(make_args):
    args = make_args(batch_eval_metrics=True)
    with pytest.raises(MisconfigurationException, match="yours has no argument `compute_result`"):
        trainer_checks.check_evaluation(args, [], lambda prediction: {}, has_own_loader=False)
    trainer_checks.check_evaluation(args, [], lambda prediction, compute_result: {}, has_own_loader=False)


def test_a_collator_has_to_be_callable(make_args):
    with pytest.raises(TypeError, match="The data_collator is a list, which cannot be called"):
        trainer_checks.check_training(make_args(), [], [])
