"""The defaults of run_glue.py, and the order of its labels."""

import json

import pytest
from run_glue import label_order, parse
from transformers import PretrainedConfig

EMBEDDED = ["--task_name", "mrpc", "--embedded"]
REAL = ["--task_name", "mrpc", "--data_dir", "d", "--model_name_or_path", "m", "--do_eval"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ([], "bucket_by_length"),
        (["--pad_to_max_length"], "random"),
        (["--train_sampling_strategy", "random"], "random"),
        (["--pad_to_max_length", "--train_sampling_strategy", "bucket_by_length"], "bucket_by_length"),
        (["--group_by_length"], "group_by_length"),
    ],
)
def test_order_is_by_length_by_default(words, strategy):
    assert parse([*REAL, *words])[2].train_sampling_strategy == strategy


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ([], 16),
        (["--per_device_train_batch_size", "16"], 8),
        (["--per_device_train_batch_size", "16", "--per_device_eval_batch_size", "64"], 64),
    ],
)
def test_evaluation_batch_has_shape_of_training_batch(words, size):
    assert parse([*EMBEDDED, *words])[2].eval_batch_size == size


def test_an_eval_strategy_alone_trains_too():
    assert parse([*EMBEDDED, "--eval_strategy", "epoch"])[2].do_train
    assert not parse([*EMBEDDED, "--eval_strategy", "epoch", "--do_eval"])[2].do_train
    own = ["--task_name", "mrpc", "--model_name_or_path", "model"]  # transformers evaluates it
    assert not parse([*own, "--output_dir", "out", "--eval_strategy", "epoch"])[2].do_train


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"train_sampling_strategy": "random", "per_device_eval_batch_size": 4}, ("random", 4)),
        ({"pad_to_max_length": False}, ("bucket_by_length", 16)),
    ],
)
def test_arguments_in_file_have_same_defaults(tmp_path, more, expected):
    (tmp_path / "c.json").write_text(json.dumps({"task_name": "mrpc", "embedded": True, **more}))
    _, _, training = parse([str(tmp_path / "c.json")])
    assert (training.train_sampling_strategy, training.per_device_eval_batch_size) == expected


def test_label_order_of_a_model_with_more_than_ten_labels_is_kept():
    labels = [f"label {i}" for i in range(12)]
    config = PretrainedConfig(id2label=dict(enumerate(reversed(labels))))
    assert label_order(config, labels) == list(reversed(range(12)))
    assert config.id2label[0] == "label 11"
