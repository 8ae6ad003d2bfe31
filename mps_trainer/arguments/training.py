"""The run and its optimizer: phases, files, seed, learning rate schedule and duration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .choices import OptimizerNames, SchedulerType
from .fields import Accepts, NotSupported, option
from .readers import read_checkpoint, read_module_names, read_path


@dataclass
class RunArguments:
    """The run: its phases, files and seed."""

    output_dir: Annotated[str, Accepts(read=read_path)] = option(
        "trainer_output", "Folder for checkpoints, the final model and results. It is created on the first write."
    )
    do_train: bool = option(False, "Train. For scripts; the Trainer does not read it.")
    do_eval: bool = option(False, "Evaluate. Set automatically when eval_strategy is not 'no'.")
    do_predict: bool = option(False, "Predict on the test set. For scripts; the Trainer does not read it.")
    resume_from_checkpoint: Annotated[str | None, Accepts(read=read_checkpoint)] = option(
        None, "Checkpoint folder to resume from. For scripts, which pass it to Trainer.train()."
    )
    seed: Annotated[int, Accepts(ge=0, le=2**32 - 1)] = option(  # numpy's bound
        42, "Seed of all random number generators, set when the Trainer is built."
    )
    data_seed: Annotated[int | None, Accepts(ge=0, le=2**63 - 1)] = option(
        None, "Seed of the order of the examples. [seed]"
    )
    full_determinism: bool = option(False, "Use only deterministic algorithms; slower.")


@dataclass
class OptimizationArguments:
    """Optimizer, learning rate schedule and duration."""

    num_train_epochs: Annotated[float, Accepts(ge=0)] = option(
        3.0, "Number of passes over the training set; may be a fraction."
    )
    max_steps: int = option(-1, "Number of optimizer steps; overrides num_train_epochs unless -1.")
    learning_rate: Annotated[float, Accepts(ge=0)] = option(5e-5, "Peak learning rate.")
    lr_scheduler_type: SchedulerType | str = option("linear", "Learning rate schedule.")
    lr_scheduler_kwargs: dict | str | None = option(None, "Further settings of the learning rate schedule, as JSON.")
    warmup_steps: Annotated[float, Accepts(ge=0)] = option(
        0, "Number of warm-up steps; below 1, a fraction of all steps."
    )
    optim: Annotated[
        OptimizerNames | str,
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
    ] = option("adamw_torch_fused", "Optimizer; the fused kernels are used where the device has them.")
    weight_decay: Annotated[float, Accepts(ge=0)] = option(
        0.0, "Decoupled weight decay, not applied to biases and normalisation weights."
    )
    adam_beta1: Annotated[float, Accepts(ge=0, lt=1)] = option(
        0.9, "AdamW: beta1, the decay of the mean of the gradients."
    )
    adam_beta2: Annotated[float, Accepts(ge=0, lt=1)] = option(
        0.999, "AdamW: beta2, the decay of the mean of the squared gradients."
    )
    adam_epsilon: Annotated[float, Accepts(ge=0)] = option(1e-8, "AdamW: epsilon, added to the denominator.")
    max_grad_norm: Annotated[float, Accepts(ge=0)] = option(
        1.0, "Clip the gradients to this norm; 0 disables clipping."
    )
    gradient_accumulation_steps: Annotated[int, Accepts(ge=1)] = option(
        1, "Number of batches whose gradients are accumulated for one optimizer step."
    )
    label_smoothing_factor: Annotated[float, Accepts(ge=0, le=1)] = option(
        0.0, "Label smoothing: the fraction of probability spread over all classes; 0 disables it."
    )
    optim_args: str | None = option(None, "Further settings of the optimizer: name=value, separated by commas.")
    optim_target_modules: Annotated[None | str | list[str], Accepts(read=read_module_names)] = option(  # noqa: RUF036
        None, "Modules that GaLore and APOLLO optimize: a name, a pattern, or a list of them; all-linear for all."
    )
    average_tokens_across_devices: bool = option(
        True, "With several processes, normalise the loss by the items of all processes."
    )
    neftune_noise_alpha: Annotated[float | None, Accepts(ge=0)] = option(
        None, "NEFTune noise on the embeddings in training, for instruction tuning: 5 to 15. [none]"
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
