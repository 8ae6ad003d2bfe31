"""Describes a run before its first step, on the screen and in the log: device, amount of work, and checkpoints."""

from __future__ import annotations

import logging
from typing import Any

from ..data.buckets import buckets_of
from ..data.epoch_loader import length_of, num_examples
from ..data.plan import StepPlan
from ..devices import ACCELERATORS
from ..devices.facts import cpu_bfloat16
from ..model.attention_patching import describe_attention
from ..model.quantized import describe_quantized, packed_sizes
from ..utils.text import choice_text, counted, format_bytes

logger = logging.getLogger(__name__)
# The logger whose level scripts for transformers set, and whose lines they and their users look for.
_transformers_logger = logging.getLogger("transformers.trainer")

# Numbers that an optimizer keeps for each trained parameter, by what its name in `optim` begins with; others keep none
_KEPT = {"adam": 2.0, "nadam": 2.0, "radam": 2.0, "lion": 1.0, "rmsprop": 1.0, "adagrad": 1.0}


def first_lines(args: Any, state: Any, model: Any, loader: Any) -> list[str]:
    """Returns the lines that a run prints before its first step.

    Lines that cannot be computed for this run are left out. A library may tell callbacks of an object around its
    model, as SetFit does, which has no parameters.
    """
    several = f" in {args.world_size} processes" if args.world_size > 1 else ""
    lines = [f"Training on {args.device}{several}: {args.decision.reason}"]
    for line in (
        lambda: parameters_of(model),
        lambda: _steps(args, state, loader),
        lambda: _batch(args, state),
        lambda: expected_checkpoints(args, state, model),
        lambda: buckets_of(loader),
        lambda: describe_quantized(model, args.device),
        lambda: describe_attention(model, args),
        lambda: "leaves out padding where it can" if getattr(state, "leaves_out_padding", False) else None,
        lambda: (
            f"resumes after step {state.global_step} of {state.max_steps}, in epoch {state.epoch or 0:.2f}"
            if state.global_step
            else None
        ),
    ):
        try:
            text = line()
        except Exception:  # a library may have a model or a loader of its own
            logger.debug("A line about the run was left out.", exc_info=True)
            continue
        if text is not None:
            lines.append(f"  {text}")
    return lines


def announce(run: Any) -> None:
    """Logs the first lines of a TrainingRun, and the sizes that transformers logs under its names."""
    if not _transformers_logger.isEnabledFor(logging.INFO):
        return
    args, trainer = run.args, run.trainer
    trainable = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    known = length_of(run.loader) is not None
    advice = ACCELERATORS[args.device.type].precision_advice(cpu_bfloat16())
    precision = {"no": "as the model's weights"}.get(args.mixed_precision, f"autocast to {args.mixed_precision}")
    rows = {
        "Precision": precision if advice is None else f"{precision}; {advice}",
        "Num examples": f"{run.num_examples:,}" if known else "unknown",
        "Num Epochs": f"{run.plan.epochs:,}" if known else "as many as the steps take",
        "Batch size per device": f"{trainer._train_batch_size:,}",
        "Gradient Accumulation steps": f"{args.gradient_accumulation_steps:,}",
        "Total optimization steps": f"{run.plan.max_steps:,}",
        "Number of trainable parameters": f"{trainable:,}",
    }
    _transformers_logger.info("***** Running training *****")
    for name, value in rows.items():
        _transformers_logger.info("  %s = %s", name, value)
    for text in run.overrides.reasons:
        _transformers_logger.info("  Off: %s", text)
    for line in first_lines(args, trainer.state, run.model, run.loader):
        _transformers_logger.info("  %s", line.strip())


def parameters_of(model: Any) -> str:
    """Counts the parameters, and those that are trained."""
    packed = packed_sizes(model)  # the parameter of a quantized layer has bytes
    sizes = [(packed.get(id(each), each.numel()), each.requires_grad) for each in model.parameters()]
    count = sum(size for size, _ in sizes)
    trained = sum(size for size, is_trained in sizes if is_trained)
    if trained == count:
        return f"{count:,} parameters, all of them trained"
    return f"{count:,} parameters, {trained:,} of them trained ({100 * trained / max(count, 1):.2g} %)"


def expected_checkpoints(args: Any, state: Any, model: Any) -> str:
    """Returns the number of checkpoints to come, their folder, size and the number that stays."""
    count = saves_to_come(args, state)
    if args.save_strategy == "no" or count == 0:
        return "no checkpoints" + (' (save_strategy="no")' if args.save_strategy == "no" else "")
    at_most = "at most " if args.save_strategy == "best" else ""
    many = "a checkpoint at each epoch" if count is None else f"{at_most}{counted(count, 'checkpoint')}"
    each = " each" if count is None or count > 1 else ""
    text = f"{many} in {'the folder of this trial in ' if state.is_hyper_param_search else ''}{args.output_dir}"
    if hasattr(model, "parameters"):
        text += f", about {format_bytes(checkpoint_size(args, model))}{each}"
    limit = args.save_total_limit
    if limit is not None and limit > 0 and (count is None or limit < count):
        text += f", keeping the newest {limit}" if limit > 1 else ", keeping the newest"
        text += " and the best" if args.load_best_model_at_end else ""
    return text


def saves_to_come(args: Any, state: Any) -> int | None:
    """Returns the number of checkpoints up to the last step; None if the number of epochs is unknown."""
    if args.save_strategy not in ("steps", "epoch", "best"):
        return 0
    begun, last = state.global_step, state.max_steps
    best = args.save_strategy == "best"  # one for each evaluation at most
    if (args.eval_strategy if best else args.save_strategy) == "epoch":
        # a stream ends its epochs when it likes, and so does a run that counts its steps
        return None if state.num_train_epochs > last else max(state.num_train_epochs - int(state.epoch or 0), 0)
    every = (state.eval_steps if best else state.save_steps) or last + 1
    return last // every - begun // every + (begun < last and last % every != 0)


def checkpoint_size(args: Any, model: Any) -> int:
    """Estimates the bytes of a checkpoint: the saved weights, and the optimizer's state of the trained ones.

    An unknown optimizer counts as without state. An adapter's checkpoint has the trained weights alone.
    """
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    saved = trained if hasattr(model, "peft_config") else [*parameters, *model.buffers()]
    size = float(sum(tensor.numel() * tensor.element_size() for tensor in saved))
    if not args.save_only_model:
        name = choice_text(args.optim)
        kept = next((kept for begin, kept in _KEPT.items() if name.startswith(begin)), 0.0)
        kept = 1.0 if name == "sgd" and "momentum" in (args.optim_args or "") else kept
        bytes_each = 1 if "8bit" in name else 0.5 if "4bit" in name else 4
        size += kept * bytes_each * sum(parameter.numel() for parameter in trained)
    return round(size)


def _steps(args: Any, state: Any, loader: Any) -> str:
    steps = counted(state.max_steps, "step")
    batch = examples_in_step(args, state) // (args.world_size * args.gradient_accumulation_steps)
    examples = num_examples(loader, batch) if loader is not None and length_of(loader) else 0
    if not examples:
        return steps
    epochs = args.num_train_epochs
    if args.max_steps > 0:
        plan = StepPlan.of(loader, args)
        whole, rest = divmod(state.max_steps, plan.updates_per_epoch)
        epochs = plan.progress(whole, rest * plan.accumulation)
    return f"{steps}, {epochs:.3g} epoch{'s' if f'{epochs:.3g}' != '1' else ''} of {examples:,} examples"


def _batch(args: Any, state: Any) -> str:
    """Returns the effective batch and its factors."""
    size = examples_in_step(args, state)
    text = f"{counted(size, 'example')} in a step"
    parts = [
        f"{size // (args.world_size * args.gradient_accumulation_steps)} in a batch",
        f"{args.world_size} processes" if args.world_size > 1 else "",
        f"{args.gradient_accumulation_steps} accumulated" if args.gradient_accumulation_steps > 1 else "",
    ]
    parts = [part for part in parts if part]
    return text if len(parts) == 1 else f"{text}: {' x '.join(parts)}"


def examples_in_step(args: Any, state: Any) -> int:
    """Returns the examples in an optimizer step of all processes.

    A run that resumes from a checkpoint of transformers may have smaller batches than its arguments say: this
    Trainer's state has the number, and another library's does not.
    """
    asked = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    return getattr(state, "update_size", asked)
