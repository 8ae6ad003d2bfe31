"""The first lines of a run."""

from types import SimpleNamespace

import pytest
from torch import nn
from transformers.trainer_callback import TrainerState

from mps_trainer import callbacks
from mps_trainer.callbacks.overview import checkpoint_size, expected_checkpoints, first_lines, saves_to_come
from tests.conftest import callback
from tests.tiny import tiny


def first(make_trainer, capfd, **settings):
    trainer = make_trainer(disable_tqdm=False, **settings)
    trainer.train()
    return [line for line in capfd.readouterr().out.splitlines() if not line.startswith("step")]


def test_the_first_lines_say_device_size_steps_batch_and_checkpoints(make_trainer, capfd, tmp_path):
    lines = first(make_trainer, capfd, max_steps=4, gradient_accumulation_steps=2, save_strategy="steps", save_steps=3)
    assert lines[0].startswith("Training on cpu: use_cpu=True")
    assert lines[1:5] == [
        "  74 parameters, all of them trained",
        "  4 steps, 1.4 epochs of 40 examples",  # 3 steps an epoch: of 2, 2 and 1 batches
        "  16 examples in a step: 8 in a batch x 2 accumulated",
        f"  2 checkpoints in {tmp_path / 'run'}, about 888 bytes each",
    ]


def test_the_number_of_checkpoints_is_what_the_run_writes(make_trainer, capfd, tmp_path):
    given = [
        {"save_strategy": "steps", "save_steps": 2, "max_steps": 6},
        {"save_strategy": "steps", "save_steps": 4, "max_steps": 6},
        {"save_strategy": "epoch", "num_train_epochs": 2},
        {"save_strategy": "epoch", "max_steps": 7},
    ]
    for number, settings in enumerate(given):
        folder = tmp_path / str(number)
        lines = first(make_trainer, capfd, output_dir=str(folder), **settings)
        written = len(list(folder.glob("checkpoint-*")))
        assert lines[4].startswith(f"  {written} checkpoint")


def test_a_resumed_run_says_where_it_goes_on_and_counts_what_is_to_come(make_trainer, capfd, tmp_path):
    make_trainer(max_steps=6, save_strategy="steps", save_steps=2).train()
    capfd.readouterr()
    trainer = make_trainer(disable_tqdm=False, max_steps=6, save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    lines = capfd.readouterr().out.splitlines()
    assert "  resumes after step 2 of 6, in epoch 0.40" in lines
    assert any(line.startswith("  2 checkpoints in ") for line in lines)


def test_a_limit_and_a_run_without_checkpoints_are_said(make_trainer, capfd):
    lines = first(
        make_trainer, capfd, max_steps=6, save_strategy="steps", save_steps=2, save_total_limit=2, logging_steps=10
    )
    assert lines[4].endswith("each, keeping the newest 2")
    assert first(make_trainer, capfd, max_steps=1, save_strategy="no")[4] == '  no checkpoints (save_strategy="no")'


def test_the_checkpoints_of_a_trial_are_in_its_folder(make_args):
    args, state = make_args(save_strategy="steps"), TrainerState(max_steps=4, save_steps=2, is_hyper_param_search=True)
    text = expected_checkpoints(args, state, None)
    assert text == f"2 checkpoints in the folder of this trial in {args.output_dir}"


def test_the_size_of_a_checkpoint_is_near_what_is_written(make_trainer, tmp_path):
    given = {"model": tiny("LlamaForCausalLM", hidden_size=128), "train_dataset": [{"input_ids": [1], "labels": [1]}]}
    trainer = make_trainer(given, max_steps=1, save_strategy="steps", save_steps=1)
    trainer.train()
    written = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoint-1").iterdir())
    assert checkpoint_size(trainer.args, trainer.model) == pytest.approx(written, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "factor"),
    [({}, 3), ({"optim": "sgd"}, 1), ({"save_only_model": True}, 1), ({"optim": "adafactor"}, 1)],
    ids=str,
)
def test_the_optimizer_is_part_of_a_checkpoint(make_args, settings, factor):
    model = nn.Linear(100, 10, bias=False)
    assert checkpoint_size(make_args(**settings), model) == factor * 4000


def test_parameters_that_are_not_trained_are_told_apart(make_trainer, capfd):
    trainer = make_trainer(disable_tqdm=False, max_steps=1)
    trainer.model.hidden.requires_grad_(False)
    trainer.train()
    assert capfd.readouterr().out.splitlines()[1] == "  74 parameters, 34 of them trained (46 %)"


def test_several_processes_are_part_of_the_effective_batch(make_args):
    args = SimpleNamespace(**vars(make_args(gradient_accumulation_steps=4, max_steps=3)))
    args.world_size, args.train_batch_size = 2, 8
    args.device, args.decision = "cpu", SimpleNamespace(reason="because.")
    state = SimpleNamespace(global_step=0, max_steps=3, num_train_epochs=1, epoch=0, save_steps=500, eval_steps=500)
    lines = first_lines(args, state, nn.Linear(1000, 1000), None)
    assert lines[:4] == [
        "Training on cpu in 2 processes: because.",
        "  1,001,000 parameters, all of them trained",
        "  3 steps",
        "  64 examples in a step: 8 in a batch x 2 processes x 4 accumulated",
    ]


def test_how_many_epochs_a_stream_has_is_not_known_beforehand():
    args = SimpleNamespace(save_strategy="epoch", eval_strategy="no")
    state = SimpleNamespace(global_step=0, max_steps=5, num_train_epochs=2**63 - 1, epoch=0)
    assert saves_to_come(args, state) is None


@pytest.mark.parametrize(("process", "display"), [(0, "NotebookProgressCallback"), (1, "ProgressCallback")])
def test_only_the_first_process_shows_a_notebooks_bar(monkeypatch, process, display):
    """The other one shows nothing in a process that is not the first."""
    pytest.importorskip("IPython")
    monkeypatch.setattr(callbacks, "is_in_notebook", lambda: True)
    settings = {"report_to": [], "enable_jit_checkpoint": False, "_stands_in": False, "process_index": process}
    args = SimpleNamespace(disable_tqdm=False, **settings)
    assert callbacks.all_callbacks(args, None, [])[-1].__name__ == display


def test_a_notebook_has_the_same_first_lines_and_leaves_the_bars_of_what_has_failed(make_trainer, capfd):
    """The next cell would draw into the output of the one that was interrupted."""
    pytest.importorskip("IPython")
    from mps_trainer.callbacks.notebook import NotebookProgressCallback

    def interrupted(prediction):
        assert shown.prediction_bar is not None
        raise KeyboardInterrupt

    def stop(state, control, **_):
        control.should_training_stop = state.global_step == 2

    shown = NotebookProgressCallback()
    trainer = make_trainer({"callbacks": [shown], "compute_metrics": interrupted}, eval_strategy="epoch")
    for work in (trainer.evaluate, trainer.train):
        capfd.readouterr()
        with pytest.raises(KeyboardInterrupt):
            work()
        assert shown.prediction_bar is shown.training_tracker is None
    printed = capfd.readouterr().out
    assert printed.startswith("Training on cpu: use_cpu=True")
    assert "  15 steps, 3 epochs of 40 examples\n" in printed
    trainer.args.eval_strategy = "no"
    trainer.log({"loss": 1.0})  # there is no table
    trainer.add_callback(callback(on_step_end=stop))
    trainer.train()  # transformers' bar raises an error if a run is stopped after two steps


@pytest.mark.parametrize("model", [SimpleNamespace(), SimpleNamespace(parameters=74)], ids=["around", "odd"])
def test_lines_that_a_librarys_model_does_not_allow_are_left_out(make_trainer, model):
    trainer = make_trainer(max_steps=4)
    device, _, *rest = first_lines(trainer.args, trainer.state, trainer.model, None)
    assert first_lines(trainer.args, trainer.state, model, None) == [device, *rest]
