"""What a run does between its steps: log, evaluate, keep the best, save."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from ..errors import UnknownMetricError
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
        loop = self.loop
        if self.control.should_log and loop is not None and self.state.global_step > loop.meter.last_read_step:
            loop.log(grad_norm, learning_rate)
        if self.control.should_evaluate:
            if loop is not None:
                loop.stopping.begin_evaluation()
            metrics = self._evaluate(trial, ignore_keys_for_eval)
            if loop is not None:
                loop.stopping.end_evaluation()
            is_best = self._determine_best_metric(metrics=metrics, trial=trial)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.tell_saved(trial)

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluates at a step of a run, and steps a schedule that follows the metric."""
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        self._report_to_hp_search(trial, self.state.global_step, metrics)
        if follows_metric(self.lr_scheduler) and not skip_scheduler:
            self.lr_scheduler.step(self._watched_metric(metrics))
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Records the metric that decides which checkpoint is best; whether this is the best so far."""
        if self.args.metric_for_best_model is None:
            return False
        value, best = self._watched_metric(metrics), self.state.best_metric
        is_best = best is None or math.isnan(best) or (value > best if self.args.greater_is_better else value < best)
        if is_best:
            self.state.best_metric = value
            if self.args.save_strategy != "no":
                self.state.best_global_step = self.state.global_step
        return is_best

    def _watched_metric(self, metrics: dict[str, float]) -> float:
        name = "eval_" + str(self.args.metric_for_best_model).removeprefix("eval_")
        if name not in metrics:
            raise UnknownMetricError(
                f"metric_for_best_model={self.args.metric_for_best_model!r} is not among the metrics of the "
                f"evaluation: {', '.join(sorted(metrics))}. Name one of them."
            )
        return self.savable_logs.number(name, metrics[name])

    def _finalize_training(self, metrics: dict[str, float]) -> None:
        """Logs the metrics of the whole run, with the memory that it took if the arguments ask for it."""
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
