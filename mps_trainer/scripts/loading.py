"""Loads models, and reports errors and invalid files in one line."""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from ..errors import MisconfigurationException, with_causes
from ..utils.installation import how_to_install
from ..utils.text import sentence


def require_folder_or_name(flag: str, name: str | None, contents: str) -> None:
    """Raises MisconfigurationException for a path that is no folder, without asking the hub.

    Args:
        contents: the expected contents of a folder.
    """
    if name is None or os.path.isdir(name):
        return
    if os.path.exists(name):
        raise MisconfigurationException(f"--{flag}: {name} is a file, and a folder or a name on the hub is expected.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise MisconfigurationException(f"--{flag} {name} is not a folder. Name one that has {contents}.")


def go_offline_if_unreachable() -> None:
    """Makes the hub's libraries use only their caches if the hub does not answer.

    They would otherwise try again and again, for a minute and more, before they say so. An answer with an error
    status is an answer. The libraries read the switch on import, so call this before `datasets` is imported.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        request = urllib.request.Request(endpoint, method="HEAD")
        urllib.request.urlopen(request, timeout=3.0).close()
    except urllib.error.HTTPError:
        pass
    except (OSError, ValueError):
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        import huggingface_hub.constants

        huggingface_hub.constants.HF_HUB_OFFLINE = True  # imported with the argument parser, before this was known


@contextlib.contextmanager
def errors_about(what: str, name: str | None, instead: str) -> Iterator[None]:
    """Turns errors of the libraries about `what` into one line that names it.

    They raise anything: KeyError, TypeError and worse for a configuration, a bare Exception for a tokenizer.

    Args:
        instead: the sentence that says what to do.
    """
    try:
        yield
    except MisconfigurationException:
        raise
    except Exception as error:
        # without Pillow, datasets only says "An error occurred while generating the dataset"
        missing = next((each for each in with_causes(error) if isinstance(each, ImportError)), None)
        if missing is not None and "Pillow" in str(missing):
            instead = how_to_install("PIL")
        raise MisconfigurationException(
            f"The {what} {name} cannot be loaded: {sentence(missing or error)} {instead}"
        ) from error


@contextlib.contextmanager
def errors_about_model(name: str) -> Iterator[None]:
    """Turns errors of loading the model `name`, a folder or a name on the hub, into one line."""
    files = "config.json, tokenizer or processor, and weights"
    require_folder_or_name("model_name_or_path", name, files)
    if not os.path.isdir(name):
        go_offline_if_unreachable()
    instead = f"Give --model_name_or_path a folder with {files}, or a name on a hub that can be reached."
    with errors_about("model", name, instead):
        yield


_NO_THREADS = "HF_DEACTIVATE_ASYNC_LOAD"  # transformers reads it


@contextlib.contextmanager
def straight_to_device(args: Any) -> Iterator[dict[str, Any]]:
    """Yields the arguments with which `from_pretrained` puts weights on the device without a copy on the host.

    On mps it loads one weight after the other inside: the threads of transformers crash there when they convert
    weights to another number format (transformers issue 48029).
    """
    if args.device.type != "mps" or args.fsdp:
        yield {}
        return
    before = os.environ.get(_NO_THREADS)
    os.environ[_NO_THREADS] = "1"
    try:
        yield {"device_map": args.device.type}
    finally:
        del os.environ[_NO_THREADS]
        if before is not None:
            os.environ[_NO_THREADS] = before


def load_model(kind: Any, name: str, args: Any, replace_head: bool = False, **settings: Any) -> Any:
    """Returns `kind.from_pretrained(name, **settings)` on the device of the TrainingArguments `args`.

    Args:
        replace_head: True to give a head of another shape random weights.

    Raises:
        MisconfigurationException: if the files do not have all weights of the body, or a head of another shape.
    """
    with straight_to_device(args) as device:
        network, loading = kind.from_pretrained(
            name, ignore_mismatched_sizes=True, output_loading_info=True, **settings, **device
        )
    prefix = f"{network.base_model_prefix}."
    other = sorted(key for key, *_ in loading["mismatched_keys"])
    faults = [f"{key} has a different shape" for key in other if key.startswith(prefix)]
    # a language model never had a pooler, so it gets a random one, as the head is
    missing = sorted(key for key in loading["missing_keys"] if key.startswith(prefix) and "pooler" not in key)
    faults += [f"{key} is missing" for key in missing]
    if faults:
        raise MisconfigurationException(
            f"The weights in {name} do not fit the model in its config.json: {faults[0]}. Give --model_name_or_path a "
            "folder with files of one model."
        )
    if other and not replace_head:
        instead = "Name the file that it was trained on with --train_file as well: its labels are the model's."
        if args.do_train:
            instead = "Add --ignore_mismatched_sizes to replace its head."
        raise MisconfigurationException(f"The model {name} was trained for another number of labels. {instead}")
    return network
