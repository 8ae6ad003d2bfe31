"""Loads model and tokenizer: the embedded tiny one, or from a folder or the hub."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any

from glue_arguments import EMBEDDED, DataTrainingArguments, ModelArguments
from glue_data import LabelledData
from glue_errors import UserError
from glue_table import highest

from mps_trainer.scripts.loading import (
    errors_about,
    reports_kept_back,
    require_folder_or_name,
    require_own_weights,
    straight_to_device,
)


def check_names(model: ModelArguments) -> None:
    """Raises UserError for a path without a folder, because the hub has no such names."""
    for flag, contents in _CONTENTS.items():
        require_folder_or_name(flag, getattr(model, flag), contents)


_CONTENTS = {
    "model_name_or_path": "config.json, tokenizer and weights",
    "config_name": "config.json",
    "tokenizer_name": "tokenizer.json or a vocabulary",
}


def load_tokenizer(model: ModelArguments, data: DataTrainingArguments) -> Any:
    from transformers import AutoTokenizer

    if data.embedded and model.tokenizer_name is None and model.model_name_or_path is None:
        return AutoTokenizer.from_pretrained(str(EMBEDDED))
    name = model.tokenizer_name or model.model_name_or_path
    with _errors_about("tokenizer", name):
        _fetch_settings(str(name), model)
        tokenizer = AutoTokenizer.from_pretrained(
            name, use_fast=model.use_fast_tokenizer, trust_remote_code=model.trust_remote_code, **_source(model)
        )
        _check_tokenizer(tokenizer)
    return tokenizer


def _check_tokenizer(tokenizer: Any) -> None:
    """Refuses a tokenizer that the library accepts but that makes training fail or learn nothing."""
    if (not tokenizer.is_fast and not getattr(tokenizer, "vocab_size", 1)) or len(tokenizer) <= len(
        set(tokenizer.all_special_ids)
    ):
        raise ValueError("it has no vocabulary, only special tokens.")  # what the library makes of a missing file
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest >= 1:
        raise ValueError(f"its model_max_length is {longest!r}, and a number of tokens is expected.")
    if not tokenizer.pad_token or tokenizer.pad_token_id is None:
        raise ValueError("it has no pad_token to fill up a batch with; name one in its tokenizer_config.json.")


def load_model(model: ModelArguments, data: DataTrainingArguments, labelled: LabelledData, training_args: Any) -> Any:
    """Returns a model with a head for the labels and their names in its configuration."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    settings: dict[str, Any] = {"num_labels": max(len(labelled.labels), 1), "finetuning_task": data.task_name}
    # a model that was trained for another kind of labels has that kind in its configuration
    settings["problem_type"] = "regression" if labelled.is_regression else "single_label_classification"
    if data.embedded and model.model_name_or_path is None:
        config = AutoConfig.from_pretrained(str(EMBEDDED), **settings)
        return AutoModelForSequenceClassification.from_config(config)
    name = str(model.model_name_or_path)
    source = {**_source(model), "trust_remote_code": model.trust_remote_code}
    with _errors_about("configuration", model.config_name or name):
        config = AutoConfig.from_pretrained(model.config_name or name, **settings, **source)
    with _errors_about("model", name), reports_kept_back() as reports:
        with straight_to_device(training_args) as device:
            network, loading = AutoModelForSequenceClassification.from_pretrained(
                name, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **source, **device
            )
        if require_own_weights(network, loading, name) and not model.ignore_mismatched_sizes:
            raise UserError(
                f"The model {name} was trained for another number of labels. Add --ignore_mismatched_sizes to begin "
                "its head anew."
            )
    for report in reports:
        logging.getLogger(report.name).handle(report)
    return network


def label_order(network: Any, labelled: LabelledData) -> dict[int, int] | None:
    """Returns the model's id for each label id of the data, if the model has the labels in another order.

    Otherwise None, and the labels' names are written into the model's configuration.
    """
    if labelled.is_regression:
        return None
    names = [str(label) for label in labelled.labels]
    held = network.config.label2id
    own = {str(name).lower(): i for name, i in held.items()} if isinstance(held, dict) else {}
    if sorted(own) == sorted(name.lower() for name in names):
        if sorted(map(str, own.values())) != sorted(map(str, range(len(names)))):
            raise UserError(
                f"The model's config.json has the label2id {held}, and ids from 0 to "
                f"{len(names) - 1} are expected. Number the labels so, or leave label2id and id2label out."
            )
        own = {name: int(i) for name, i in own.items()}
        return {i: own[name.lower()] for i, name in enumerate(names)}
    network.config.label2id = {name: i for i, name in enumerate(names)}
    network.config.id2label = dict(enumerate(names))
    return None


def longest_input(network: Any) -> int:
    """Returns the maximum number of tokens. A Mac would read past the end of the position table."""
    longest = sys.maxsize
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and hasattr(module, "num_embeddings"):
            # RoBERTa counts positions from after the one that is for padding
            before = 0 if module.padding_idx is None else module.padding_idx + 1
            longest = min(longest, module.num_embeddings - before)
    return longest


def require_fitting(network: Any, splits: Any, tokenizer: Any) -> None:
    """Raises UserError for ids without an embedding: a Mac would read past the table."""
    sizes = {"input_ids": network.get_input_embeddings().num_embeddings}
    for name, module in network.named_modules():
        if name.endswith("token_type_embeddings") and hasattr(module, "num_embeddings"):
            sizes["token_type_ids"] = module.num_embeddings
    found = [("tokenizer", "input_ids", tokenizer.pad_token_id)]
    for split, rows in splits.items():
        for column in sizes.keys() & set(rows.column_names):
            found.append((f"{split} data", column, highest(rows, column)))
    for where, column, largest in found:
        if largest >= sizes[column]:
            raise UserError(
                f"The tokenizer does not belong to the model: the {where} has {largest} among the {column}, and the "
                f"model has {sizes[column]}, counted from 0. Give --tokenizer_name the one that the model was trained "
                "with."
            )


def _errors_about(what: str, name: str | None) -> contextlib.AbstractContextManager[None]:
    return errors_about(
        what,
        name,
        "Give --model_name_or_path a folder with config.json, tokenizer and weights, a name on a hub that can be "
        "reached, or train the tiny model with --embedded.",
    )


def _source(model: ModelArguments) -> dict[str, Any]:
    return {"cache_dir": model.cache_dir, "revision": model.model_revision, "token": model.token}


def _fetch_settings(name: str, model: ModelArguments) -> None:
    """Raises an error for invalid tokenizer settings, which the library would ignore.

    It would go on with its defaults, and a cased model would see text in lower case.
    """
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    if os.path.isdir(name) or huggingface_hub.constants.HF_HUB_OFFLINE:
        return
    with contextlib.suppress(RemoteEntryNotFoundError):  # the hub says that there is none
        huggingface_hub.hf_hub_download(name, "tokenizer_config.json", **_source(model))
