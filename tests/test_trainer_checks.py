"""A Trainer checks its arguments before it loads or moves anything."""

import pathlib
import re

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from mps_trainer import Trainer, trainer_checks
from mps_trainer.distributed import Processes
from tests.conftest import Classifier, accuracy, examples, refusal


def test_an_evaluation_strategy_needs_a_dataset_or_a_loader_of_ones_own(make_trainer):
    class Own(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            return super().get_eval_dataloader(self.train_dataset)

    make_trainer({"kind": Own, "eval_dataset": None}, eval_strategy="steps")
    said = refusal(make_trainer, {"eval_dataset": None}, eval_strategy="epoch")
    assert "eval_strategy='epoch', but there is no eval_dataset." in said


def test_smaller_batches_need_one_process(make_args):
    said = refusal(trainer_checks.check_processes, make_args(auto_find_batch_size=True), Processes(0, 2))
    assert "auto_find_batch_size=True works in one process" in said


def test_metrics_by_batch_need_an_argument_for_the_last_batch(make_args):
    args = make_args(batch_eval_metrics=True)
    said = refusal(trainer_checks.check_evaluation, args, [], lambda prediction: {}, has_own_loader=False)
    assert "yours has no argument `compute_result`" in said
    trainer_checks.check_evaluation(args, [], lambda prediction, compute_result: {}, has_own_loader=False)


def test_a_collator_has_to_be_callable(make_args):
    said = refusal(trainer_checks.check_training, make_args(), [], [], kind=TypeError)
    assert "The data_collator is a list, which cannot be called" in said


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("tiny-bert", "model='tiny-bert' is the name of a model, and the Trainer needs the model itself"),
        (pathlib.Path("models/tiny"), "from_pretrained('models/tiny')"),
        (Classifier, "model is the class Classifier, and the Trainer needs a model of it"),
    ],
)
def test_a_name_or_a_class_is_no_model(make_trainer, model, says):
    assert says in refusal(make_trainer, {"model": model})


def test_weights_in_float16_are_refused_with_fp16_before_training_unless_frozen(make_trainer, make_model):
    trainer = make_trainer({"model": make_model().half()}, max_steps=1, fp16=True)
    assert re.search(r"example hidden.weight: .* Load .* dtype=torch\.float32\.$", refusal(trainer.train))
    assert trainer.state.global_step == 0
    model = make_model()
    model.hidden.half().requires_grad_(False)
    make_trainer({"model": model}, max_steps=1, fp16=True).train()


@pytest.mark.parametrize("made", [0.5, 0.0, np.float64(0.5), (0.5, 0.25)], ids=str)
def test_metrics_have_to_be_a_dictionary_or_none(make_trainer, made):
    trainer = make_trainer({"compute_metrics": lambda prediction: made})
    says = "^compute_metrics returned .* of type .*, and it has to return a dictionary"
    assert re.search(says, refusal(trainer.evaluate, kind=TypeError))
    assert "eval_loss" in make_trainer({"compute_metrics": lambda prediction: None}).evaluate()


SPLITS = DatasetDict({name: Dataset.from_list(examples(8)) for name in ("train", "test")})


def test_a_dataset_of_several_splits_is_told_to_be_one_of_them(make_trainer):
    says = r"DatasetDict with the splits train, test, and the Trainer needs one of them\. .* dataset\['train'\]\.$"
    said = refusal(make_trainer({"train_dataset": SPLITS}, max_steps=1).train)
    assert re.match(f"The training data is a {says}", said)
    assert re.match(f"The evaluation data is a {says}", refusal(make_trainer().predict, SPLITS))


def test_each_split_is_evaluated(make_trainer):
    metrics = make_trainer({"eval_dataset": SPLITS, "compute_metrics": accuracy}).evaluate()
    assert {"eval_train_accuracy", "eval_test_accuracy"} <= metrics.keys()
