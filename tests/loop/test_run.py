"""The training loop: what it computes, and what it tells."""

import json
import time
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from mps_trainer import Trainer
from mps_trainer.distributed import Processes
from mps_trainer.loop import run as run_module
from mps_trainer.loop.batch_source import BatchSource
from mps_trainer.loop.run import TrainingRun
from mps_trainer.overrides import Overrides
from tests.conftest import Stream, callback, examples, refusal

pytestmark = pytest.mark.every_device(same_draws_as_cpu=True)


def test_empty_stream_stops_with_a_warning(make_trainer, caplog):
    assert make_trainer({"train_dataset": Stream([])}, max_steps=7).train().global_step == 0
    assert "gave no batch in epoch 0" in caplog.text


def test_trainer_without_what_it_needs_is_refused(make_trainer):
    assert "requires either a `model` or" in refusal(make_trainer, {"model": None})
    assert "but not both" in refusal(make_trainer, {"model_init": lambda: None, "model": nn.Linear(1, 1)})
    assert "give the Trainer a train_dataset" in refusal(make_trainer({"train_dataset": None}).train)


def test_a_run_goes_on_if_its_trainer_is_asked_to_train_once_more(make_trainer):
    said = []
    again = callback(on_step_end=lambda **_: said.append(refusal(trainer.train)))
    trainer = make_trainer({"callbacks": [again]}, max_steps=2)
    assert trainer.train().global_step == 2
    assert [text.partition(",")[0] for text in said] == ["This Trainer is training already"] * 2


def test_a_learning_rate_that_an_optimizer_does_not_learn_of_is_told(make_trainer, caplog):
    class Anew(Trainer):
        def create_optimizer(self, model=None):
            self.optimizer = None
            return super().create_optimizer(model)

    for kind, rate in ((Anew, 0.5), (Trainer, 1e-3)):
        trainer = make_trainer({"kind": kind}, max_steps=1, learning_rate=1e-3)
        trainer.train()
        trainer.train()
        assert "has no effect" not in caplog.text
        trainer.args.learning_rate = 0.5
        trainer.train()
        assert trainer.optimizer.param_groups[0]["initial_lr"] == rate
        assert ("learning_rate=0.5 has no effect: " in caplog.text) == (kind is Trainer)


def test_a_frozen_model_is_refused_unless_a_subclass_makes_the_optimizer(make_trainer, trained, make_model):
    def unfreezes(name):
        def method(self, *args, **kwargs):
            self.model.requires_grad_(True)
            return getattr(Trainer, name)(self, *args, **kwargs)

        return type("Unfreezes", (Trainer,), {name: method})

    assert "no parameter of " in refusal(make_trainer({"model": make_model().requires_grad_(False)}).train)
    for kind in map(unfreezes, ("create_optimizer", "training_step", "compute_loss")):
        assert trained({"model": make_model().requires_grad_(False), "kind": kind}, max_steps=1).state.global_step == 1


def test_tokenizer_is_the_deprecated_name_of_processing_class(make_trainer):
    tokenizer = object()
    with pytest.warns(FutureWarning, match=r"processing_class.*|1\.0") as caught:
        trainer = make_trainer({"tokenizer": tokenizer})
    assert trainer.processing_class is tokenizer
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("settings", "step", "expected"),
    [
        ({"save_strategy": "no"}, 3, False),
        ({"save_strategy": "epoch"}, 3, False),
        ({"save_strategy": "steps", "save_steps": 2}, 0, False),
        ({"save_strategy": "steps", "save_steps": 2}, 1, True),
        ({"save_strategy": "steps", "save_steps": 2}, 2, False),
        ({"save_strategy": "steps", "save_steps": 3}, 4, True),  # the last one
        ({"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 3, "save_steps": 2}, 1, False),
        ({"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 3, "save_steps": 2}, 2, True),
    ],
)
def test_a_checkpoint_may_be_due_after_the_step_to_come(make_trainer, settings, step, expected):
    metric = {"metric_for_best_model": "loss"} if settings["save_strategy"] == "best" else {}
    run = TrainingRun(make_trainer(max_steps=5, **settings, **metric))
    run.trainer.state.global_step = step
    assert run.may_save() is expected


def test_a_stream_goes_on_where_its_checkpoint_says(make_trainer):
    state, other = (
        TrainingRun(
            make_trainer(
                {"train_dataset": Stream(examples(20))}, max_steps=9, gradient_accumulation_steps=accumulation
            )
        ).position
        for accumulation in (1, 3)
    )
    saved = {**other.state_dict()["loop"], "epoch": 2, "batches": 6}

    def load(loop):
        state.load_state_dict({"loop": loop, "rng": None})

    for has_ended, of_loader, place in (
        (False, {}, (2, 2)),  # two updates, of one batch each in this run
        (True, {"loader_has_ended": False}, (2, 2)),  # by max_steps
        (True, {"loader_has_ended": True}, (3, 0)),
    ):
        load({**saved, "epoch_has_ended": has_ended, **of_loader})
        assert (state.epoch, state.batches) == place
    del saved["accumulation"]  # release 0.1 does not save it
    load(saved)
    assert (state.epoch, state.batches) == (2, 6)
    load({})  # transformers saves none
    assert state.epoch_has_ended


def test_a_dataset_goes_on_where_the_steps_say_if_its_epochs_had_other_batches_before(make_trainer):
    run = TrainingRun(make_trainer(max_steps=20, gradient_accumulation_steps=2))  # 5 batches in an epoch
    run.trainer.state.global_step = 4
    saved = {"epoch": 9, "batches": 9, "epoch_has_ended": False, "batches_per_epoch": 10}
    run.position.load_state_dict({"loop": {**run.position.state_dict()["loop"], **saved}, "rng": None})
    assert (run.position.epoch, run.position.batches, run.position.first_step) == (1, 2, 4)


def test_norm_and_rate_of_an_override_are_saved_as_plain_numbers_and_loaded(make_trainer):
    state = TrainingRun(make_trainer()).position
    state.grad_norm, state.learning_rate = np.float32(1.5), torch.tensor(0.25)
    state.load_state_dict({"loop": json.loads(json.dumps(state.state_dict()["loop"])), "rng": None})
    assert repr((state.grad_norm, state.learning_rate)) == "(1.5, 0.25)"


@pytest.mark.parametrize(("strategy", "stop"), [("steps", 3), ("steps", 5), ("epoch", 5), ("steps", 6)])
def test_a_resumed_stream_trains_as_if_it_had_not_been_interrupted(assert_resumes, strategy, stop):
    settings = {"max_steps": 7, "save_strategy": strategy, "save_steps": 1, "per_device_train_batch_size": 4}
    assert_resumes(stop, lambda: {"train_dataset": Stream(examples(20))}, **settings)  # an epoch has 5


def test_a_stream_goes_on_if_a_finished_run_gets_more_steps(trained):
    seen = []

    class Seeing(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append(inputs["x"].sum().item())
            return super().training_step(model, inputs, num_items_in_batch)

    given = {"kind": Seeing, "train_dataset": Stream(examples(20))}
    for steps in (3, 7):  # an epoch has 5
        trained(given, resume=steps > 3, max_steps=steps, save_strategy="epoch", per_device_train_batch_size=4)
    assert seen[:5] != seen[2:7]
    assert seen[5:] == seen[:2]


def test_an_override_that_is_asked_at_every_step_gets_the_sum_of_the_losses_and_is_told(trained):
    sums = []

    class Asked(Trainer):
        def _maybe_log_save_evaluate(self, tr_loss, *args, **kwargs):
            sums.append(float(tr_loss))
            assert args[3] == self.state.epoch
            return super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

    trained({"kind": Asked}, max_steps=4, logging_steps=4)
    assert len(sums) >= 4
    assert 0 < sums[0] < sums[1] < sums[2]


@pytest.mark.parametrize(
    ("method", "settings", "text"),
    [
        ("_maybe_log_save_evaluate", {}, "steps that do not wait for the loss"),
        ("get_batch_samples", {}, "naming rows of the dataset in warnings"),
        ("_get_grad_norm", {}, "clipping within the optimizer's step"),
        ("_save", {"save_strategy": "epoch"}, "saving while training goes on"),
        ("_save", {"save_strategy": "epoch", "save_async": False}, None),
        ("_save", {"save_strategy": "no"}, None),
    ],
)
def test_an_override_that_costs_speed_is_told(make_trainer, method, settings, text):
    kind = type("Own", (Trainer,), {method: lambda self, *args, **kwargs: None})
    run = TrainingRun(make_trainer({"kind": kind}, **settings))
    expected = [] if text is None else [f"{text}, because {method} is overridden"]
    assert list(run.trainer._mt_overrides.reasons) == expected


def test_speed_is_that_of_the_steps_since_the_resume(make_trainer):
    run = TrainingRun(make_trainer(max_steps=400))
    run.position.first_step, run.trainer.state.global_step = 100, 300
    metrics = run.metrics(4000, time.time() - 100)
    assert metrics["train_steps_per_second"] == pytest.approx(2, rel=0.02)
    assert metrics["train_samples_per_second"] == pytest.approx(20, rel=0.02)
    assert metrics["total_flos"] == run.trainer.state.total_flos


def batch_of(rows):
    return {"x": torch.ones(rows, 4), "labels": torch.zeros(rows, dtype=torch.int64)}


def test_a_batch_without_anything_to_learn_is_counted_but_not_run(make_trainer, make_model):
    seen, model = [], make_model()
    model.register_forward_pre_hook(lambda module, _, given: seen.append(len(given["x"])), with_kwargs=True)
    run = TrainingRun(make_trainer({"model": model}, gradient_accumulation_steps=3))
    counted, given = [], [batch_of(n) for n in (1, 2, 3)]
    run.trainer._track_num_input_tokens = lambda batch: counted.append(len(batch["x"]))
    run.zero_gradient_backward = lambda batch, items: zero.append((len(batch["x"]), items))
    for processes, expected in ((Processes(), []), (Processes(0, 2), [(3, 8)])):
        zero, seen[:], counted[:] = [], [], []
        run.trainer._mt_processes = processes
        run.accumulate_batches(given, 8, [2.0, None, None])
        assert (seen, counted, zero) == ([1], [1, 2, 3], expected)  # other processes wait for the last one


def test_a_batch_without_the_models_main_input_has_no_tokens_and_the_log_says_so(trained, caplog):
    assert trained(max_steps=1, include_num_input_tokens_seen="all").state.num_input_tokens_seen == 0
    assert "the batch has no 'input_ids', so its tokens are not counted" in caplog.text


def test_processes_exchange_their_tokens_once_in_an_update_whatever_batches_each_has(make_trainer, monkeypatch):
    trainer = make_trainer(include_num_input_tokens_seen="all")
    run, exchanged = TrainingRun(trainer), []
    trainer._mt_processes, trainer.model.main_input_name = Processes(0, 2), "x"
    monkeypatch.setattr(Processes, "sum", lambda self, numbers: exchanged.append(numbers) or [10 * numbers[0]])
    batches = [batch_of(n) for n in (1, 2)]
    for update in (1, 2):
        run.accumulate_batches(batches, None, [1.0, 1.0])
        assert (exchanged, trainer.state.num_input_tokens_seen) == ([[12]] * update, update * 120)

    monkeypatch.setattr(run.loss, "filler_positions", lambda count: {1})  # the second is another process's
    run.zero_gradient_backward = lambda *given: None
    trainer.current_flos, trainer.floating_point_ops = 0.0, lambda batch: len(batch["x"])
    run.accumulate_batches(batches, None, [1.0, None])
    assert (exchanged[2:], trainer.current_flos) == ([[4]], 1)

    counted = []  # an override exchanges by itself, in each batch of all processes
    trainer._mt_processes, trainer._mt_overrides = Processes(), Overrides(track_num_input_tokens=True)
    run, trainer._mt_processes, trainer._track_num_input_tokens = TrainingRun(trainer), Processes(0, 2), counted.append
    run.accumulate_batches(batches, None, [1.0, 1.0])
    assert (counted, len(exchanged)) == (batches, 3)


def test_processes_exchange_gradients_after_the_last_batch_of_an_update_alone(make_trainer, monkeypatch):
    withheld = []
    monkeypatch.setattr(run_module, "no_sync", lambda model, wanted: withheld.append(wanted) or nullcontext())
    TrainingRun(make_trainer()).accumulate_batches([batch_of(1)] * 3, None, [3.0] * 3)
    assert withheld == [True, True, False]


def test_a_log_before_the_first_step_has_the_rate_of_the_schedule(make_trainer):
    trainer = make_trainer(learning_rate=0.25, lr_scheduler_type="constant", max_steps=2)
    run = TrainingRun(trainer)
    run.start_time = 0.0
    run.log(None, None)
    assert trainer.state.log_history[-1]["learning_rate"] == 0.25
    run.log(None, 0.5)
    assert trainer.state.log_history[-1]["learning_rate"] == 0.5


class NotesBatches(Trainer):
    noted = counted = synced = ()

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.noted = (*self.noted, inputs["labels"].tolist())
        if "accelerator" in vars(self):
            self.synced = (*self.synced, self.accelerator.sync_gradients)
        return super().training_step(model, inputs, num_items_in_batch)

    def floating_point_ops(self, inputs):
        self.counted = (*self.counted, inputs["labels"].tolist())
        return 7


def test_without_skipping_data_a_resumed_epoch_begins_again(trained, tmp_path):
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "train_sampling_strategy": "sequential"}
    trained(**settings)
    again = trained({"kind": NotesBatches}, tmp_path / "run" / "checkpoint-2", ignore_data_skip=True, **settings)
    assert again.noted == ([row["labels"] for row in examples(40)[:8]],)


def test_operations_are_counted_of_each_batch_and_the_accelerator_knows_the_last_of_an_update(make_trainer):
    trainer = make_trainer({"kind": NotesBatches}, max_steps=2, gradient_accumulation_steps=2)
    _ = trainer.accelerator
    trainer.current_flos = 5.0  # an earlier run that failed left them
    trainer.train()
    assert trainer.synced == (False, True, False, True)
    assert trainer.counted == trainer.noted
    assert len(trainer.noted) == 4
    assert trainer.state.total_flos == 4 * 7


def test_an_interrupt_while_workers_end_leaves_no_run_behind(make_trainer, monkeypatch):
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(BatchSource, "close", interrupted)
    trainer = make_trainer({"callbacks": [callback(on_step_end=interrupted)]})
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not trainer.is_in_train
    assert trainer._mt_run is None
