"""Compares the check with the simulated device over transformers' model families.

    python -m tools.check_families                 # all families, a table at the end
    python -m tools.check_families bert rt_detr    # these

For each family it makes a tiny model by the names of its configuration's fields, and lets both judge a training step
and a batch of evaluation: `trace_step` on the CPU, and `train()` and `evaluate()` on the simulated device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

SECONDS = 25  # a family
PARAMETERS = 45_000_000  # a model with more was not made tiny
LENGTH, SIDE, WORDS = 16, 32, 99

# Patterns of names of fields with a whole number, and the value that makes the model small. The first match counts.
# Sizes that lists of other fields repeat are left out in a second try.
DEPTHS = [
    (r"(vocab|vocabulary)_size$|^n_vocab|^num_embeddings$", WORDS),
    (r"max_.*(position|length|len)|n_positions|max_seq", 128),
    (r"experts?_per_tok|^top_k$|_topk$|moe_k$|topk_group|n_group", 1),
    (r"experts|^num_local", 4),
    (r"(?<!extract_)layers?$|^n_layer|blocks?$|^depth$", 2),
    (r"mask_(time|feature)_length", 2),
    (r"num_queries|num_.*_queries|num_query_tokens", 6),
]
WIDTHS = [
    (r"(key_value|kv)_heads|num_query_groups", 2),
    (r"heads?$|^n_head", 2),
    (r"rope_head_dim|qk_nope|v_head_dim|head_dim|kv_channels|d_kv|^d_head", 16),
    (r"lora_rank", 16),
    (r"image_size|input_size|img_size|crop_size", SIDE),
    (r"patch_size$", 8),
    (r"num_mel_bins|feature_size", 16),
    (r"hidden_size|hidden_dim|d_model|n_embd|embed_dim|^dim$|embedding_size|projection_dim|width|_dim$", 32),
    (r"intermediate|ffn|d_ff|n_inner|mlp_dim|_size_per_", 48),
]
TRIES = (DEPTHS + WIDTHS, DEPTHS)
RESNET = {"model_type": "resnet", "out_features": ["stage2", "stage3", "stage4"]}  # in place of timm's, not installed
TASKS = {
    "tokens": ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT"),
    "boxes": ("OBJECT_DETECTION",),
    "classes": ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION"),
    "pixels": ("SEMANTIC_SEGMENTATION",),
    "none": ("PRETRAINING", ""),
}


def small(config: Any, sizes: list[tuple[str, int]]) -> dict[str, Any]:
    """Returns small values for the fields of a configuration, those of the configurations in it included."""
    values: dict[str, Any] = {}
    for name, default in vars(config).items():
        value = next((size for pattern, size in sizes if re.search(pattern, name)), None)
        if isinstance(default, int) and not isinstance(default, bool):
            if value is not None and value < default:
                values[name] = value
            elif re.search(r"token_id$|token_index$|_id$", name) and default >= WORDS:
                values[name] = WORDS - 1
        elif isinstance(default, dict) and "rope_theta" in default:
            values[name] = {**default, "mrope_section": [2, 3, 3]}  # for heads of 16
    for name in config.sub_configs or {}:
        sub: Any = getattr(config, name, None)
        if hasattr(sub, "sub_configs"):
            values[name] = {"model_type": sub.model_type, **small(sub, sizes)}
            if getattr(sub, "out_features", None):
                values[name]["out_features"] = sub.out_features
            if sub.model_type == "timm_backbone":
                values[name] = RESNET
    return values


def classes_of(family: str) -> list[tuple[str, type]]:
    """Returns the models of a family, each with its task, those with a loss first."""
    from transformers.models.auto import modeling_auto as auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found = []
    for task, names in TASKS.items():
        for name in names:
            mapping = getattr(auto, f"MODEL_FOR_{name}_MAPPING" if name else "MODEL_MAPPING")
            kind = None
            with contextlib.suppress(ValueError):  # a name without a class
                kind = mapping.get(CONFIG_MAPPING[family], None)
            if kind is not None:
                found.append((task, kind[0] if isinstance(kind, tuple) else kind))
    return found


def model_of(family: str) -> tuple[Any, str, list[dict[str, Any]]]:
    """Returns a tiny model of a family that runs, the task that it has a loss for, or "none", and examples."""
    import torch
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    failed: Exception | None = None
    for task, kind in classes_of(family)[:2]:
        for sizes in TRIES:
            try:
                config = CONFIG_MAPPING[family](**small(CONFIG_MAPPING[family](), sizes))
                if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
                    config.decoder_start_token_id = 0
                with torch.device("meta"):
                    count = sum(parameter.numel() for parameter in kind(config).parameters())
                if count > PARAMETERS:
                    raise ValueError(f"{count:,} parameters")
                torch.manual_seed(0)
                model = kind(config)
                rows = rows_of(model, task)
                with torch.no_grad():
                    model(**collated(rows[:2]))
            except TimeoutError:
                raise
            except Exception as error:  # fields that do not fit, inputs that are not given
                failed = failed or error
            else:
                return model, task, rows
    raise failed or ValueError("no model")


def collated(examples: list[dict[str, Any]]) -> dict[str, Any]:
    import torch
    from transformers import default_data_collator

    batch = default_data_collator([{k: v for k, v in each.items() if k != "labels"} for each in examples])
    labels = [each["labels"] for each in examples if "labels" in each]
    if labels:
        batch["labels"] = torch.stack(labels) if isinstance(labels[0], torch.Tensor) else labels
    return batch


def family_of(model: Any) -> str:
    return str(model.config.model_type)


def rows_of(model: Any, task: str) -> list[dict[str, Any]]:
    """Returns examples with the inputs that the model's forward() needs, by their names."""
    import inspect

    import torch

    torch.manual_seed(0)
    takes = inspect.signature(model.forward).parameters
    main = model.main_input_name
    side = getattr(model.config, "image_size", SIDE)
    side = side if isinstance(side, int) else next(iter(side or [SIDE]))
    channels = getattr(model.config, "num_channels", 3)

    def example(index: int) -> dict[str, Any]:
        ids = torch.randint(5, WORDS - 5, (LENGTH,))
        row: dict[str, Any] = {}
        if main == "pixel_values" or (task == "none" and "pixel_values" in takes and "input_ids" in takes):
            row["pixel_values"] = torch.randn(channels if isinstance(channels, int) else 3, side, side)
        if main == "input_ids" or (task == "none" and "input_ids" in takes):
            row |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if main in ("input_values", "input_features"):
            bins, frames = (
                getattr(model.config, "num_mel_bins", 16),
                getattr(model.config, "max_source_positions", None),
            )
            bins = getattr(model.config, "input_feat_per_channel", bins)
            features = (64, bins) if frames is None or bins == 80 else (bins, 2 * frames)
            row[main] = torch.randn((6400,) if main == "input_values" else features)
        if "bbox" in takes:
            boxes = torch.randint(0, 5, (LENGTH, 4)).cumsum(1)
            row["bbox"] = boxes / 100 if family_of(model) == "udop" else boxes
            if family_of(model) == "udop":
                row["pixel_values"] = torch.randn(3, side, side)
        if main not in row:
            raise ValueError(f"input {main}")
        if model.config.is_encoder_decoder and "decoder_input_ids" in takes and task != "tokens":
            row["decoder_input_ids"] = ids
        if task == "tokens":
            row["labels"] = ids.clone()
        elif task == "classes":
            row["labels"] = torch.tensor(index % 2)
        elif task == "pixels":
            row["labels"] = torch.randint(0, 2, (side, side))
        elif task == "boxes":
            row["labels"] = {"class_labels": torch.tensor([index % 2]), "boxes": torch.rand(1, 4) * 0.2 + 0.3}
        return row

    return [example(index) for index in range(4)]


def judged(family: str, on_device: bool) -> dict[str, Any]:
    """Returns what the check, or the simulated device, says about a family."""
    import torch
    from torch import nn

    from mps_trainer import Trainer, TrainingArguments
    from mps_trainer.check import trace_step

    model, task, rows = model_of(family)

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, labels: Any = None, **inputs: Any) -> dict[str, Any]:
            outputs = self.model(**inputs)
            values = outputs.values() if isinstance(outputs, dict) else outputs
            tensors = [each for each in values if isinstance(each, torch.Tensor) and each.requires_grad]
            training = tensors or [torch.zeros((), device=next(iter(inputs.values())).device)]
            return {"loss": sum(each.float().square().mean() for each in training)}

    if task == "none":
        model = WithLoss()
    settings: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "max_steps": 1}
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=2, per_device_eval_batch_size=2, remove_unused_columns=False,
        use_cpu=not on_device, seed=0, **settings,
    )  # fmt: skip
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows[:2], data_collator=collated)
    if not on_device:
        report = trace_step(trainer)
        return {"ready": report.ready, "why": "" if report.ready else report.verdict}
    trainer.train()
    trainer.evaluate()
    return {"ready": True, "why": ""}


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"{seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def judge_all(families: list[str], on_device: bool) -> None:
    """Prints a line of JSON for each family: its name, then the verdict or the error."""
    warnings.simplefilter("ignore")
    from transformers.utils import logging

    logging.set_verbosity_error()
    if on_device:
        from mps_trainer.simulator import activate

        activate(same_draws_as_cpu=True)
    for family in families:
        print(json.dumps([family, "begin"]), flush=True)
        try:
            with limited(SECONDS):
                verdict = judged(family, on_device)
        except Exception as error:
            verdict = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}
        print(json.dumps([family, verdict]), flush=True)


def verdicts(families: list[str], on_device: bool) -> dict[str, dict[str, Any]]:
    """Judges in a process of its own, and in another after a family that ends it."""
    found: dict[str, dict[str, Any]] = {}
    while left := [family for family in families if family not in found]:
        command = [sys.executable, "-m", "tools.check_families", "--judge", "mps" if on_device else "check", *left]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
        if not lines:
            raise RuntimeError(f"{' '.join(command[:5])} ended with {done.returncode}.")
        for family, verdict in lines:
            if verdict == "begin":
                verdict = {"error": f"the process ended with {done.returncode}"}
            found[family] = verdict
    return found


def compared(check: dict[str, Any], device: dict[str, Any]) -> str:
    """Returns "agree", "false alarm", "missed" or "not built", which is an error that is none of the device's."""
    if "error" in check:
        return "not built"
    if "error" not in device:
        return "agree" if check["ready"] else "false alarm"
    return "missed" if check["ready"] else "agree"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("families", nargs="*")
    parser.add_argument("--judge", choices=["check", "mps"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.judge:
        judge_all(arguments.families, arguments.judge == "mps")
        return
    from transformers.models.auto import modeling_auto as auto

    mappings = [
        f"MODEL_FOR_{name}_MAPPING_NAMES" if name else "MODEL_MAPPING_NAMES" for name in sum(TASKS.values(), ())
    ]
    families = arguments.families or sorted({family for name in mappings for family in getattr(auto, name)})
    check = verdicts(families, on_device=False)
    built = [family for family in families if "error" not in check[family]]
    device = verdicts(built, on_device=True) if built else {}
    rows = {family: compared(check[family], device.get(family, {})) for family in families}
    for family, result in rows.items():
        why = check[family].get("error") or device[family].get("error") or check[family]["why"]
        print(f"{family:32} {result:12} {why if result != 'agree' else ''}"[:200].rstrip())
    counts = {result: list(rows.values()).count(result) for result in ("agree", "false alarm", "missed", "not built")}
    print(f"\n{len(families)} families: " + ", ".join(f"{count} {result}" for result, count in counts.items()))


if __name__ == "__main__":
    main()
