"""Describes the data for the model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glue_arguments import DataTrainingArguments
from glue_data import HUB_DATASET
from glue_tasks import TASKS


def card_settings(data: DataTrainingArguments) -> dict[str, Any]:
    """Returns task, language and data for `create_model_card` and `push_to_hub`, where they have a name."""
    settings: dict[str, Any] = {"tasks": "text-classification"}
    if data.embedded:
        return {**settings, "language": "en", "dataset": f"made-up sample for {_title(data)} of run_glue.py"}
    if data.task_name is not None:
        settings |= {"language": "en", "dataset": _title(data)}
        on_hub = {"dataset_tags": HUB_DATASET, "dataset_args": data.task_name}
        return settings if data.data_dir is not None else {**settings, **on_hub}
    if data.dataset_name is not None:
        name, config = data.dataset_name, data.dataset_config_name
        return {**settings, "dataset": name, "dataset_tags": name, "dataset_args": config or "default"}
    return {**settings, "dataset": Path(str(data.train_file)).name}


def _title(data: DataTrainingArguments) -> str:
    return f"GLUE {TASKS[str(data.task_name)].folder}"
