"""The run and its optimizer: phases, files, seed, learning rate schedule and duration."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import OptimizerNames, SchedulerType
from .fields import NotSupported, option
from .readers import read_checkpoint, read_module_names, read_path


@dataclass
class RunArguments:
    """The run: its phases, files and seed."""

    output_dir: str = option(
        "trainer_output",
        "Folder for checkpoints, the final model and results. It is created on the first write.",
        read=read_path,
    )
    do_train: bool = option(False, "Train. For scripts; the Trainer does not read it.")
    do_eval: bool = option(False, "Evaluate. Set automatically when eval_strategy is not 'no'.")
    do_predict: bool = option(False, "Predict on the test set. For scripts; the Trainer does not read it.")
    resume_from_checkpoint: str | None = option(
        None, "Checkpoint folder to resume from. For scripts, which pass it to Trainer.train().", read=read_checkpoint
    )
    seed: int = option(  # numpy's bound
        42, "Seed of all random number generators, set when the Trainer is built.", ge=0, le=2**32 - 1
    )
    data_seed: int | None = option(None, "Seed of the order of the examples. [seed]", ge=0, le=2**63 - 1)
    full_determinism: bool = option(False, "Use only deterministic algorithms; slower.")


@dataclass
class OptimizationArguments:
    """Optimizer, learning rate schedule and duration."""

    num_train_epochs: float = option(3.0, "Number of passes over the training set; may be a fraction.", ge=0)
    max_steps: int = option(-1, "Number of optimizer steps; overrides num_train_epochs unless -1.")
    learning_rate: float = option(5e-5, "Peak learning rate.", ge=0)
    lr_scheduler_type: SchedulerType | str = option("linear", "Learning rate schedule.")
    lr_scheduler_kwargs: dict | str | None = option(None, "Further settings of the learning rate schedule, as JSON.")
    warmup_steps: float = option(0, "Number of warm-up steps; below 1, a fraction of all steps.", ge=0)
    optim: OptimizerNames | str = option(
        "adamw_torch_fused",
        "Optimizer; the fused kernels are used where the device has them.",
        refused=(
            NotSupported(
                "it updates the weights inside the backward pass, which this loop does not give it",
                "Use galore_adamw or adafactor, which save memory as well",
                ("lomo", "adalomo"),
            ),
            NotSupported(
                "it needs a TPU or an NPU",
                "Use adamw_torch_fused, whose kernels mps, cuda and cpu have",
                ("adamw_torch_xla", "adamw_torch_npu_fused"),
            ),
        ),
    )
    weight_decay: float = option(0.0, "Decoupled weight decay, not applied to biases and normalisation weights.", ge=0)
    adam_beta1: float = option(0.9, "AdamW: beta1, the decay of the mean of the gradients.", ge=0, lt=1)
    adam_beta2: float = option(0.999, "AdamW: beta2, the decay of the mean of the squared gradients.", ge=0, lt=1)
    adam_epsilon: float = option(1e-8, "AdamW: epsilon, added to the denominator.", ge=0)
    max_grad_norm: float = option(1.0, "Clip the gradients to this norm; 0 disables clipping.", ge=0)
    gradient_accumulation_steps: int = option(
        1, "Number of batches whose gradients are accumulated for one optimizer step.", ge=1
    )
    label_smoothing_factor: float = option(
        0.0, "Label smoothing: the fraction of probability spread over all classes; 0 disables it.", ge=0, le=1
    )
    optim_args: str | None = option(None, "Further settings of the optimizer: name=value, separated by commas.")
    optim_target_modules: None | str | list[str] = option(  # noqa: RUF036
        None,
        "Modules that GaLore and APOLLO optimize: a name, a pattern, or a list of them; all-linear for all.",
        read=read_module_names,
    )
    average_tokens_across_devices: bool = option(
        True, "With several processes, normalise the loss by the items of all processes."
    )
    neftune_noise_alpha: float | None = option(
        None, "NEFTune noise on the embeddings in training, for instruction tuning: 5 to 15. [none]", ge=0
    )
    stop_on_nan: bool = option(
        False,
        "Stop at a nan or infinite loss or gradient before it changes the weights, and save a checkpoint. One "
        "blocking device-to-host sync per step.",
        kw_only=True,
    )
    auto_find_batch_size: bool = option(
        False, "When memory runs out, halve the batch size and double gradient accumulation."
    )
