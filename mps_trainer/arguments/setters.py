"""Defines methods that set several related arguments at once and return the arguments."""

from __future__ import annotations

from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="Setters")


class Setters:
    """transformers' `set_*` methods, with its names and defaults, which are not always those of the fields."""

    def check(self) -> None:
        """Checks the values after a change; raises for invalid ones."""
        raise NotImplementedError

    def set_training(
        self: _Self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> _Self:
        """Sets how to train and for how long; do_train becomes true."""
        checkpointing = activation_checkpointing if gradient_checkpointing is None else gradient_checkpointing
        return self._set(
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            activation_checkpointing=checkpointing,
            gradient_checkpointing=checkpointing,
        )

    def set_evaluate(
        self: _Self,
        strategy: str = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> _Self:
        """Sets when and how to evaluate; do_eval follows from the strategy."""
        return self._set(
            eval_strategy=strategy,
            do_eval=getattr(strategy, "value", strategy) != "no",
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self: _Self, batch_size: int = 8, loss_only: bool = False) -> _Self:
        """Sets how to predict; do_predict becomes true."""
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self: _Self,
        strategy: str = "steps",
        steps: int = 500,
        total_limit: int | None = None,
        on_each_node: bool = False,
    ) -> _Self:
        """Sets when to save checkpoints, and how many to keep."""
        return self._set(
            save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )

    def set_logging(
        self: _Self,
        strategy: str = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> _Self:
        """Sets when and where to log."""
        return self._set(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )

    def set_push_to_hub(
        self: _Self,
        model_id: str,
        strategy: str = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> _Self:
        """Sets where and when to upload; push_to_hub becomes true."""
        return self._set(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )

    def set_optimizer(
        self: _Self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> _Self:
        """Sets the optimizer and its settings."""
        return self._set(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self: _Self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> _Self:
        """Sets the learning rate schedule and the number of steps."""
        return self._set(
            lr_scheduler_type=name, num_train_epochs=num_epochs, max_steps=max_steps, warmup_steps=warmup_steps
        )

    def set_dataloader(
        self: _Self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> _Self:
        """Sets how batches are loaded."""
        return self._set(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
        )

    def _set(self: _Self, **values: Any) -> _Self:
        """Sets all of `values`, or none if one of them is invalid."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            self.check()
        except ValueError:
            vars(self).update(before)
            raise
        return self
