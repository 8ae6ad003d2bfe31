"""A loss or gradient norm that is no finite number: told at the next log, or with stop_on_nan the end of the run."""

import math
import os

import pytest
import torch
from torch import nn

from mps_trainer import MisconfigurationException, Trainer
from mps_trainer.checkpoints.folders import find_checkpoints
from mps_trainer.errors import NonFiniteLossError
from mps_trainer.guards.numbers import OVERFLOWS
from mps_trainer.simulator import SimulationCallback
from tests.conftest import Stream, assert_same_weights, callback, examples, logged, messages_with, refusal, weights

BAD = 17  # the row that makes the loss nan


def with_bad_row():
    rows = examples(40)
    rows[BAD] = {**rows[BAD], "x": torch.full((4,), math.nan)}
    return rows


@pytest.fixture
def expected(make_trainer):
    """The step in which the bad row comes first, counted from 1, and the rows of that step."""

    def find(**settings):
        loader = make_trainer({"train_dataset": with_bad_row()}, **settings).get_train_dataloader()
        return next((i + 1, list(batch)) for i, batch in enumerate(loader.batch_sampler) if BAD in batch)

    return find


@pytest.mark.every_device
class TestTelling:
    def test_the_log_names_step_rate_and_rows_once(self, make_trainer, expected, caplog):
        settings = {"per_device_train_batch_size": 8, "max_steps": 10, "learning_rate": 0.5, "logging_steps": 10}
        step, rows = expected(**settings)
        make_trainer({"train_dataset": with_bad_row()}, **settings).train()
        (warning,) = messages_with(caplog, "What to do")
        rate = 0.5 * (10 - step + 1) / 10
        where = f"rows {', '.join(map(str, rows))} of the training dataset"
        assert warning.startswith(f"The loss was nan at step {step} (learning rate {rate:g}, {where}).")
        assert f"It is the first of {10 - step + 1} such steps since the last log." in warning
        assert "lower learning_rate" in warning
        assert "stop_on_nan=True" in warning

    @pytest.mark.parametrize(("settings", "times"), [({"logging_steps": 5}, 2), ({"logging_strategy": "no"}, 1)])
    def test_it_is_told_once_at_each_log_or_at_the_end(self, trained, caplog, settings, times):
        trainer = trained({"train_dataset": with_bad_row()}, max_steps=10, **settings)
        warnings = messages_with(caplog, "What to do")
        assert len(warnings) == times
        assert times == 1 or "It is the first of 5 such steps since the last log." in warnings[1]
        assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))  # logging_nan_inf_filter saw to it

    def test_a_gradient_between_two_logs_is_told(self, make_trainer, caplog):
        class Overflowing(Trainer):
            def _get_grad_norm(self, model, grad_norm=None):
                norm = super()._get_grad_norm(model, grad_norm)
                return norm * math.inf if self.state.global_step == 2 else norm

        make_trainer({"kind": Overflowing}, max_steps=6, logging_steps=6).train()
        (warning,) = messages_with(caplog, "What to do")
        assert warning.startswith("The gradient norm was inf at step 3 (")
        assert "such steps" not in warning

    def test_a_stream_is_told_by_its_batches(self, make_trainer, caplog):
        def raise_it(args, state, **_):
            args.gradient_accumulation_steps = 2 + state.global_step // 3

        given = {"train_dataset": Stream(with_bad_row()), "callbacks": [callback(on_step_end=raise_it)]}
        settings = {"gradient_accumulation_steps": 2, "logging_steps": 4}
        make_trainer(given, max_steps=4, per_device_train_batch_size=4, **settings).train()
        # row 17 is in batch 4, which with batch 5 makes step 3; step 4 has 3 batches
        assert "The loss was nan at step 3 (" in messages_with(caplog, "What to do")[0]
        assert "batches 4 to 5 of epoch 0, counted from 0)" in messages_with(caplog, "What to do")[0]

    @pytest.mark.parametrize("strategy", ["random", "sequential", "bucket_by_length"])
    def test_rows_are_told_in_any_order_in_later_epochs_and_after_a_resume(self, trained, tmp_path, strategy):
        settings = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4, "gradient_accumulation_steps": 2}
        settings["train_sampling_strategy"] = strategy
        seen, told = {}, {}

        class Asking(Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                step = self.state.global_step
                seen.setdefault(step, []).extend(map(int, inputs["x"][:, 0]))
                told[step] = self._mt_run.history.rows(step)
                return super().training_step(model, inputs, num_items_in_batch)

        rows = [{"x": torch.full((4,), float(i)), "labels": 0, "input_ids": [1] * (i % 7 + 1)} for i in range(40)]
        for resume in (None, tmp_path / "run" / "checkpoint-4"):
            seen.clear()
            trained({"kind": Asking, "train_dataset": rows}, resume, **settings)
            assert seen == {step: told[step] for step in range(4 if resume else 0, 12)}


def test_telling_costs_no_wait(mps, make_trainer):
    steps = SimulationCallback(mps)
    trainer = make_trainer({"callbacks": [steps], "train_dataset": with_bad_row()}, max_steps=5, logging_steps=5)
    mps.reset()
    trainer.train()
    assert [step.blocking_reads for step in steps.steps] == [0] * 5
    assert mps.report().device_to_host == 1


class StreamOfEpochs(Stream):
    def set_epoch(self, epoch):
        self.rows = examples(40, seed=epoch)


@pytest.mark.every_device(same_draws_as_cpu=True)
class TestStopping:
    SETTINGS = {"stop_on_nan": True, "max_steps": 12, "learning_rate": 1e-2, "logging_steps": 3}  # noqa: RUF012

    def stopped(self, trainer, **kwargs):
        with pytest.raises(NonFiniteLossError) as caught:
            trainer.train(**kwargs)
        return caught.value

    def test_the_error_says_where_and_what_to_do_next(self, make_trainer, expected):
        step, rows = expected(**self.SETTINGS)
        trainer = make_trainer({"train_dataset": with_bad_row()}, **self.SETTINGS)
        error = self.stopped(trainer)
        folder = os.path.join(trainer.args.output_dir, f"checkpoint-{step - 1}")
        assert (error.step, error.rows, error.checkpoint) == (step, rows, folder)
        assert error.learning_rate == pytest.approx(1e-2 * (12 - step + 1) / 12)
        assert isinstance(error, (MisconfigurationException, ArithmeticError))
        for part in (f"The loss was nan at step {step} ", "lower learning_rate", repr(folder)):
            assert part in str(error)
        assert "\n" not in str(error)
        assert "fp16" not in str(error)

    @pytest.mark.parametrize("data", [list, StreamOfEpochs])
    @pytest.mark.parametrize(("at", "accumulated"), [(0, 1), (3, 1), (5, 1), (7, 1), (4, 2)])  # 5 batches an epoch
    def test_a_run_that_goes_on_from_there_is_the_run_without_the_fault(
        self, make_trainer, trained, tmp_path, data, at, accumulated
    ):
        def fail(model, given, outputs):
            if model.training and failing.state.global_step == at:
                outputs["loss"] = outputs["loss"] * math.nan

        def noisy(rows):
            points = torch.stack([row["x"] for row in rows])
            return {"x": points + torch.randn(points.shape), "labels": torch.tensor([row["labels"] for row in rows])}

        settings = {**self.SETTINGS, "max_steps": 9, "eval_strategy": "epoch"}
        settings["gradient_accumulation_steps"] = accumulated
        given = {"data_collator": noisy, "train_dataset": data(examples(40))}
        whole = trained(given, output_dir=str(tmp_path / "whole"), **settings)
        failing = make_trainer(given, output_dir=str(tmp_path / "run"), **settings)
        failing.model.register_forward_hook(fail)
        error = self.stopped(failing)
        assert failing.state.global_step == error.step - 1 == at
        again = self.stopped(failing, resume_from_checkpoint=True)  # exactly that step again
        assert (again.step, again.rows, again.checkpoint) == (error.step, error.rows, error.checkpoint)
        mended = trained(given, resume=error.checkpoint, output_dir=str(tmp_path / "run"), **settings)
        assert_same_weights(weights(whole.model), weights(mended.model))
        for name in ("loss", "eval_loss"):
            assert logged(whole, name) == logged(mended, name)

    def test_running_means_are_those_of_before_the_step(self, make_trainer, make_model):
        model = make_model()
        model.norm = nn.BatchNorm1d(8)
        model.unused = nn.BatchNorm1d(8, track_running_stats=False)  # its buffers are None
        trainer = make_trainer({"model": model, "train_dataset": with_bad_row()}, **self.SETTINGS)
        error = self.stopped(trainer)
        assert all(torch.isfinite(tensor).all() for tensor in weights(trainer.model).values())
        assert int(trainer.model.norm.num_batches_tracked) == error.step - 1

    def test_weights_that_are_lost_already_push_out_no_checkpoint(self, make_trainer):
        def lose(model, state, **_):
            if state.global_step == 4:
                nn.init.constant_(model.head.weight, math.nan)

        saving = {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 1}
        trainer = make_trainer({"callbacks": [callback(on_step_begin=lose)]}, **self.SETTINGS, **saving)
        error = self.stopped(trainer)
        assert error.checkpoint == os.path.join(trainer.args.output_dir, "checkpoint-3")
        assert find_checkpoints(trainer.args.output_dir) == [error.checkpoint]
        assert "The weights after step 4 are not finite either" in str(error)

    def test_a_healthy_run_is_the_same_with_it_and_says_nothing(self, trained, caplog):
        runs = []
        for stop in (False, True):
            runs.append(trained(**{**self.SETTINGS, "stop_on_nan": stop}))
        assert_same_weights(*(weights(run.model) for run in runs))
        for key in ("loss", "grad_norm"):
            assert logged(runs[0], key) == logged(runs[1], key)
        assert messages_with(caplog, "What to do") == []


class Scaled(Trainer):
    overflowing = range(0)

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.state.global_step in self.overflowing:
            model.head.bias.grad.fill_(math.inf)
        return loss


class TestWithAScaler:
    def make(self, make_trainer, overflowing, **settings):
        kind = type("Own", (Scaled,), {"overflowing": overflowing})
        return make_trainer({"kind": kind}, fp16=True, stop_on_nan=True, max_steps=OVERFLOWS + 5, **settings)

    def test_gradients_that_the_scaler_leaves_out_do_not_stop_the_run(self, make_trainer, caplog):
        trainer = self.make(make_trainer, {*range(OVERFLOWS + 5)} - {OVERFLOWS - 1})
        assert trainer.train().global_step == OVERFLOWS + 5
        assert messages_with(caplog, "What to do") == []

    def test_as_many_in_a_row_as_make_the_scale_vanish_do(self, make_trainer):
        with pytest.raises(NonFiniteLossError, match=f"in the last of {OVERFLOWS} steps in a row") as caught:
            self.make(make_trainer, range(OVERFLOWS + 3)).train()
        assert caught.value.step == OVERFLOWS
        assert "use bf16 instead of fp16" in str(caught.value)

    def test_a_loss_does_at_once_and_the_trainer_can_go_on(self, make_trainer):
        trainer = self.make(make_trainer, range(0))
        trainer.train_dataset = with_bad_row()
        assert "The loss was nan" in refusal(trainer.train, kind=NonFiniteLossError)
        fresh = self.make(make_trainer, range(0))
        for run in (trainer, fresh):
            run.train_dataset = examples(40)
            assert run.train(resume_from_checkpoint=True).global_step == OVERFLOWS + 5
        assert_same_weights(weights(trainer.model), weights(fresh.model))


def test_stopping_waits_once_a_step(mps, make_trainer):
    steps = SimulationCallback(mps)
    make_trainer({"callbacks": [steps]}, max_steps=4, logging_steps=1, stop_on_nan=True).train()
    assert [step.blocking_reads for step in steps.steps[1:]] == [1] * 3
