"""Model and tokenizer: the embedded tiny one, a folder's, or the hub's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from glue_arguments import EMBEDDED, DataTrainingArguments, ModelArguments
from glue_data import LabelledData
from glue_errors import UserError, one_line


def load_tokenizer(model: ModelArguments, data: DataTrainingArguments) -> Any:
    from transformers import AutoTokenizer

    if data.embedded and model.tokenizer_name is None and model.model_name_or_path is None:
        return AutoTokenizer.from_pretrained(str(EMBEDDED))
    name = model.tokenizer_name or model.model_name_or_path
    with _errors_about(name):
        _fetch_settings(str(name), model)
        return AutoTokenizer.from_pretrained(
            name, use_fast=model.use_fast_tokenizer, trust_remote_code=model.trust_remote_code, **_source(model)
        )


def load_model(model: ModelArguments, data: DataTrainingArguments, labelled: LabelledData) -> Any:
    """A model with a head for the labels; their names are in its configuration."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    settings: dict[str, Any] = {"num_labels": max(len(labelled.labels), 1), "finetuning_task": data.task_name}
    if data.embedded and model.model_name_or_path is None:
        config = AutoConfig.from_pretrained(str(EMBEDDED), **settings)
        network = AutoModelForSequenceClassification.from_config(config)
    else:
        name = model.model_name_or_path
        with _errors_about(name):
            source = {**_source(model), "trust_remote_code": model.trust_remote_code}
            config = AutoConfig.from_pretrained(model.config_name or name, **settings, **source)
            network = AutoModelForSequenceClassification.from_pretrained(
                name, config=config, ignore_mismatched_sizes=model.ignore_mismatched_sizes, **source
            )
    return network


def label_order(network: Any, labelled: LabelledData) -> dict[int, int] | None:
    """The model's id for each of the data's, where the model was trained with the same labels in another order.

    Otherwise None, and the labels' names are written into the model's configuration.
    """
    if labelled.is_regression:
        return None
    names = [str(label) for label in labelled.labels]
    own = {str(name).lower(): int(i) for name, i in network.config.label2id.items()}
    if sorted(own) == sorted(name.lower() for name in names):
        return {i: own[name.lower()] for i, name in enumerate(names)}
    network.config.label2id = {name: i for i, name in enumerate(names)}
    network.config.id2label = dict(enumerate(names))
    return None


@contextlib.contextmanager
def _errors_about(name: str | None) -> Iterator[None]:
    """Turns what the libraries raise for a model that cannot be had into one line that names it."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if "ignore_mismatched_sizes" in str(error):
            raise UserError(
                f"The model {name} was trained for another number of labels. Add --ignore_mismatched_sizes to begin "
                "its head anew."
            ) from error
        raise UserError(
            f"The model {name} cannot be loaded: {one_line(error)} Give --model_name_or_path a folder with "
            "config.json, tokenizer and weights, a name on a hub that can be reached, or train the tiny model with "
            "--embedded."
        ) from error


def _source(model: ModelArguments) -> dict[str, Any]:
    return {"cache_dir": model.cache_dir, "revision": model.model_revision, "token": model.token}


def _fetch_settings(name: str, model: ModelArguments) -> None:
    """Makes a tokenizer's settings that cannot be had an error; the library would take them for absent.

    It would go on with its defaults, and a cased model would see text in lower case.
    """
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    if os.path.isdir(name) or huggingface_hub.constants.HF_HUB_OFFLINE:
        return
    with contextlib.suppress(RemoteEntryNotFoundError):  # the hub says that there is none
        huggingface_hub.hf_hub_download(name, "tokenizer_config.json", **_source(model))
