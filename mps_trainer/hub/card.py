"""Writes the model card: transformers' card with data, device, precision and versions.

No card is lost: one that was not written here, or was changed since, is kept under another name.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.columns import name_parts
from ..devices.facts import MachineFacts, for_a_report, gather_facts, machine_line, system_line
from ..distributed.sharded import class_of, is_sharded
from ..utils.text import choice_text
from ..version import __version__

if TYPE_CHECKING:
    from ..training_args import TrainingArguments

logger = logging.getLogger(__name__)

KEPT = "README.before.md"
_UNTOUCHED = "# Model Card for Model ID"  # PEFT's own card, before anybody has filled it in
_SEAL = re.compile(r"\n*<!-- mps_trainer wrote this card: ([0-9a-f]{16}) -->\s*$")
_BY_PEFT = ("library_name", "tags", "base_model", "pipeline_tag")
_DATA = "## Training and evaluation data\n\n"
_VERSIONS = "### Framework versions\n"


def write(trainer: Any, given: dict[str, Any]) -> None:
    """Writes `README.md` into the output folder of a Trainer.

    Args:
        given: the arguments of `Trainer.create_model_card`.
    """
    from huggingface_hub import ModelCard
    from transformers.modelcard import TrainingSummary

    args, model, state = trainer.args, trainer.model, trainer.state
    train_dataset, eval_dataset = trainer.train_dataset, trainer.eval_dataset
    path = Path(args.output_dir, "README.md")
    keep_if_changed(path)
    known: Any = None
    with contextlib.suppress(Exception):  # a header that is damaged, or no header at all between two lines
        known = ModelCard.load(path).data if path.is_file() else None
    named = train_dataset if eval_dataset is None else eval_dataset  # the one that transformers names
    summary = TrainingSummary.from_trainer(trainer, **_completed_settings(given, known, model, named))
    summary.finetuned_from = summary.finetuned_from or None
    summary.hyperparameters = {**(summary.hyperparameters or {}), **_more_arguments(args, state.epoch, model)}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()  # the card replaces a link, because the link's target may belong to another folder
    dataset = given["dataset"]
    data = data_table(train_dataset, eval_dataset, dataset if isinstance(dataset, str) else ", ".join(dataset or []))
    path.write_text(completed(summary.to_model_card(), data, args, state.log_history), encoding="utf-8")
    if known is not None and known.get("library_name") == "peft":
        model.create_or_update_model_card(args.output_dir)
        _forget_local_base(path)
    text = _SEAL.sub("", path.read_text(encoding="utf-8")).rstrip()
    path.write_text(f"{text}\n\n<!-- mps_trainer wrote this card: {_digest(text)} -->\n", encoding="utf-8")


def settings_for_upload(given: dict[str, Any], args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Returns the settings of an uploaded model's card: those given, its name in the repository, and its own tags."""
    settings = dict(given)
    if settings.get("model_name") is None:
        settings["model_name"] = (args.hub_model_id or Path(args.output_dir).absolute().name).split("/")[-1]
    own_tags = getattr(model, "model_tags", None)
    if own_tags is not None:
        settings["tags"] = _merge_tags(given.get("tags") or [], own_tags)
    return settings


def _merge_tags(tags: str | Iterable[str], more: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*([tags] if isinstance(tags, str) else tags), *more]))


def _completed_settings(given: dict[str, Any], known: Any, model: Any, dataset: Any) -> dict[str, Any]:
    """Returns the settings of the card: those given, the tags of an existing card, and derived ones.

    Args:
        known: the header of the card that is there; None if there is none.
        dataset: the one that transformers names in the card.
    """
    settings = dict(given)
    if known is not None and known.tags is not None and given["tags"] is not None:
        settings["tags"] = _merge_tags(given["tags"], known.tags)
    is_nameless = hasattr(dataset, "info") and getattr(dataset, "builder_name", "") is None  # made in memory
    if given["dataset_tags"] is None and is_nameless:
        settings |= {"dataset_tags": [], "dataset_args": []}  # it would write that the dataset is called None
    if given["finetuned_from"] is None and getattr(model, "config", None) is None:
        settings["finetuned_from"] = ""  # it would look for the name in the model's configuration
    if given["tasks"] is None and is_sharded(model):
        settings["tasks"] = task_of(class_of(model))
    return settings


def task_of(kind: type) -> str | None:
    """Returns the task that transformers' card names for a model class, also for a sharded model."""
    from transformers.modelcard import TASK_MAPPING

    found = None
    for task, mapping in TASK_MAPPING.items():
        values: Any = mapping.values()
        if any(kind.__name__ in ([value] if isinstance(value, str) else value) for value in values):
            found = task  # the last one, as there
    return found


def completed(card: str, data: str, args: Any, log_history: list[dict[str, Any]]) -> str:
    """Returns transformers' card with facts from this package.

    Args:
        data: the table that `data_table` returns.
    """
    facts = for_a_report(gather_facts())
    if data:
        card = card.replace(f"{_DATA}More information needed\n", f"{_DATA}{data}\n")
    before, _, versions = card.partition(_VERSIONS)
    own_versions = f"- mps_trainer {__version__}\n- Python {facts.python_version}\n- {system_line(vars(facts))}"
    device = _device_lines(args, log_history, facts)
    return f"{before}### Device\n\n{device}\n\n{_VERSIONS}{versions.rstrip()}\n{own_versions}\n"


def _device_lines(args: Any, log_history: list[dict[str, Any]], facts: MachineFacts) -> str:
    """Returns the lines on the device, why it was chosen, and how fast it trained."""
    machine = machine_line(vars(facts), "chip" if facts.chip else "machine", "memory_bytes")
    simulated = ", simulated on the CPU" if facts.mps_simulated and args.device.type == "mps" else ""
    lines = [f"- Device: {args.device}{simulated}. {args.decision.reason}", f"- Machine: {machine}"]
    if args.world_size > 1:
        lines.append(f"- {_processes(args)}")
    entry = next((entry for entry in reversed(log_history) if "train_runtime" in entry), None)
    if entry is not None:
        speed = entry.get("train_samples_per_second", 0.0)
        lines.append(f"- Training took {entry['train_runtime']:,.0f} s, {speed:,.1f} samples/s")
    return "\n".join(lines)


def _more_arguments(args: Any, epoch: float | None, model: Any) -> dict[str, Any]:
    """Returns facts that transformers' card leaves out: precision, adapters, and unusual settings."""
    autocast = "bfloat16 autocast" if args.bf16 else "float16 autocast"
    more: dict[str, Any] = {"precision": autocast if args.bf16 or args.fp16 else "as the weights, no autocast"}
    if args.world_size > 1:
        more["distributed_type"] = _processes(args)  # it says multi-GPU whatever they train on
    if args.max_steps != -1:  # its card then has the steps alone
        more["epochs"] = round(float(epoch or 0), 2)
    for name, usual in (("weight_decay", 0.0), ("max_grad_norm", 1.0), ("train_sampling_strategy", "random")):
        value = getattr(args, name)
        value = getattr(value, "value", value)
        if value != usual:
            more[name] = value
    for name, config in (getattr(model, "peft_config", None) or {}).items():
        values = {key: getattr(config, key, None) for key in ("r", "lora_alpha", "lora_dropout")}
        known = ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)
        more[f"adapter {name}"] = choice_text(config.peft_type) + (f" with {known}" if known else "")
    return more


def _processes(args: Any) -> str:
    """Returns how many processes train together, over which backend, and on which kind of device."""
    import torch.distributed as dist

    over = f"{dist.get_backend()}, " if dist.is_initialized() else ""
    return f"{args.world_size} processes ({over}{args.device.type})"


def data_table(train_dataset: Any, eval_dataset: Any, source: str = "") -> str:
    """Returns the table of datasets with their number of examples and their source; "" without any dataset.

    Args:
        source: of datasets that do not say where they are from.
    """
    datasets = {"training": train_dataset}
    if isinstance(eval_dataset, dict):
        datasets |= {f"evaluation, {name}": part for name, part in eval_dataset.items()}
    else:
        datasets["evaluation"] = eval_dataset
    rows = []
    for name, dataset in datasets.items():
        if dataset is not None:
            origin = _origin(dataset) or _cell(source) or "not known"
            rows.append(f"| {_cell(name)} | {_examples(dataset)} | {origin} |")
    return "\n".join(["| data | examples | source |", "| --- | ---: | --- |", *rows]) if rows else ""


def _examples(dataset: Any) -> str:
    try:
        return f"{len(dataset):,}"
    except TypeError:
        return "a stream"


def _origin(dataset: Any) -> str:
    """Returns name, configuration, split and licence of a dataset of the `datasets` library; "" for any other."""
    parts = name_parts(dataset)
    if parts and (license := getattr(dataset.info, "license", None)):
        parts.append(f"licence {license}")
    return _cell(", ".join(parts))


def _cell(text: str) -> str:
    """Returns the text of a table cell: on one line, with its column separators escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def _forget_local_base(path: Path) -> None:
    """Removes from the header a base model that is not a name on the hub: PEFT writes a folder there, or nothing."""
    from huggingface_hub import ModelCard

    written = ModelCard.load(path)
    base = written.data.get("base_model")
    if base is None or (base and not os.path.isdir(str(base))):
        return
    written.data.pop("base_model")
    written.data["tags"] = [tag for tag in written.data.get("tags") or [] if not tag.startswith("base_model:")]
    written.save(path)


# A card that is there already


def keep_if_changed(path: Path) -> None:
    """Copies a card that a person wrote or changed to another name before it is overwritten."""
    content = path.read_bytes() if path.is_file() else b""
    text = content.decode(errors="replace").replace("\r\n", "\n")
    if not text.strip() or is_ours(text) or _UNTOUCHED in text:
        return
    names = itertools.chain([KEPT], (KEPT.replace(".md", f".{number}.md") for number in itertools.count(2)))
    place = next(path.with_name(name) for name in names if not os.path.lexists(path.with_name(name)))
    place.write_bytes(content)
    logger.warning("%s was not written by mps_trainer or was changed since: its text is kept in %s.", path, place.name)


def is_ours(text: str) -> bool:
    """Returns True if a card is as `write` left it; PEFT may have rewritten its part of the header."""
    found = _SEAL.search(text)
    with contextlib.suppress(Exception):  # its header was damaged since
        return found is not None and found[1] == _digest(_SEAL.sub("", text))
    return False


def _digest(text: str) -> str:
    """Returns a digest of the text and of the parts of the header that PEFT does not write."""
    import yaml
    from huggingface_hub import ModelCard

    read = ModelCard(text, ignore_metadata_errors=True)
    header = {name: value for name, value in read.data.to_dict().items() if name not in _BY_PEFT}
    said = yaml.safe_dump(header, sort_keys=True) + read.text.strip()
    return hashlib.sha256(said.encode()).hexdigest()[:16]
