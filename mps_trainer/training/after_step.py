"""What a run does between its steps: log, evaluate, keep the best, save."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn

from ..evaluation.best_metric import record_if_best, watched_metric
from .evaluation import Evaluation
from .optimizer import follows_metric


class AfterStep(Evaluation):
    """The methods that the loop calls after each step; a subclass may override each of them."""

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: nn.Module,
        trial: Any,
        epoch: float | None,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Does what the callbacks asked for. `tr_loss` is the sum of losses since the last log, on the device."""
        loop = self._mt_run
        if self.control.should_log and loop is not None and self.state.global_step > loop.meter.last_read_step:
            loop.log(grad_norm, learning_rate)
        if self.control.should_evaluate:
            with contextlib.nullcontext() if loop is None else loop.preemption.evaluating():
                metrics = self._evaluate(trial, ignore_keys_for_eval)
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self._mt_saver.tell(self._get_output_dir(trial))

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluates at a step of a run, and steps a schedule that follows the metric."""
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if follows_metric(self.lr_scheduler) and not skip_scheduler:
            self.lr_scheduler.step(watched_metric(self.args, metrics, self._mt_savable_logs.number))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Returns True if this evaluation is the best so far, and records its metric if it is."""
        return record_if_best(self.args, self.state, metrics, self._mt_savable_logs.number)

    def _finalize_training(self, metrics: dict[str, float]) -> None:
        """Logs the metrics of the whole run, with the memory that it took if the arguments ask for it."""
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
