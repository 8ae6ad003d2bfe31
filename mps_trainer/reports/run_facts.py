"""Describes model, data, arguments and origin of a run: the part of a record that does not change with the steps."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ..data.buckets import buckets_of
from ..data.columns import name_parts
from ..data.samplers import lengths_in_column
from ..devices.facts import without_home
from ..distributed.sharded import class_of
from ..model.attention_patching import describe_attention
from ..model.introspection import flos_per_token
from ..training_args import TrainingArguments
from ..utils.text import as_line
from .redaction import NOT_SHOWN, Rule, own_class, readable, shown

_MOST_BATCHES = 20_000  # reading their lengths takes a hundredth of a second
_MOST_EXAMPLES = 200_000
_LONGEST = 4000  # characters of a command line
_GIT_TIMEOUT = 2.0  # seconds

_NUMBER = re.compile(r"-[\d.]+(?:[eE][-+]?\d+)?")


def model_of(model: Any, args: Any) -> dict[str, Any]:
    """Returns the class and the parameters of a model; `operations_per_token` where they can be estimated.

    `attention` says if a run with `args` does not compute it as the model does.
    """
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    known: dict[str, Any] = {
        "class": class_of(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
    }
    if hasattr(model, "modules") and (attention := describe_attention(model, args)) is not None:
        known["attention"] = attention
    # the estimate that the Trainer's counter of operations makes, from which the number of tokens follows
    if getattr(model, "main_input_name", None) == "input_ids" and hasattr(model, "num_parameters"):
        known["operations_per_token"] = flos_per_token(model)
    return known


def data_of(args: Any, loader: Any, batch: int) -> dict[str, Any]:
    """Returns facts about batches, and lengths where they are known without going through the examples.

    Args:
        batch: examples in an update of all processes.
    """
    dataset: Any = getattr(loader, "dataset", None)
    known: dict[str, Any] = {
        "batch": batch,
        "batch_per_device": batch // (args.world_size * args.gradient_accumulation_steps),
        "accumulation": args.gradient_accumulation_steps,
        "processes": args.world_size,
        "sampling": str(args.train_sampling_strategy),
    }
    lengths: list[int] | None = None
    if hasattr(dataset, "__len__"):
        known["examples"] = len(dataset)
    if (sampler := buckets_of(loader)) is not None:
        lengths = sampler.lengths.tolist()
        known["buckets"] = list(sampler.buckets.lengths)
        if len(sampler) <= _MOST_BATCHES:
            known["padded"] = _padded(sampler)
    elif known.get("examples", _MOST_EXAMPLES + 1) <= _MOST_EXAMPLES:
        lengths = lengths_in_column(dataset, "input_ids")
    if lengths:
        ordered, last = sorted(lengths), len(lengths) - 1
        known["lengths"] = {
            "shortest": ordered[0],
            "median": ordered[last // 2],
            "95th percentile": ordered[round(0.95 * last)],
            "longest": ordered[-1],
            "mean": sum(ordered) / len(ordered),
        }
    return known


def _padded(sampler: Any) -> list[dict[str, int]]:
    """Counts batches of an epoch and their tokens, real ones and all, by padded length."""
    found: dict[int, dict[str, int]] = {}
    for batch in sampler.batches_of(0):
        lengths = sampler.lengths[batch]
        padded = sampler.buckets.length_for(int(lengths.max()))
        entry = found.setdefault(padded, {"length": padded, "batches": 0, "real": 0, "tokens": 0})
        entry["batches"] += 1
        entry["real"] += int(lengths.sum())
        entry["tokens"] += padded * len(batch)
    return [found[length] for length in sorted(found)]


def arguments_of(args: Any, rules: Mapping[str, Rule]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all arguments, and those that differ from their defaults with both values, as `rules` allow."""
    values = _values_of(args)
    own = own_class(args)
    defaults = {f.name: getattr(f.default, "value", f.default) for f in fields(args) if f.default is not MISSING}
    # the arguments derive defaults from each other, which a class of the user's may do in its own way
    defaults |= _values_of(own(output_dir=args.output_dir)) if issubclass(own, TrainingArguments) else {}
    changed = [name for name, value in values.items() if name != "output_dir" and value != defaults.get(name)]
    visible, usual = ({n: shown(v, rules.get(f"--{n}")) for n, v in each.items()} for each in (values, defaults))
    return visible, {name: [visible[name], usual.get(name)] for name in changed}


def _values_of(args: Any) -> dict[str, Any]:
    """Returns all arguments; to_dict() has a token's name in place of the token, even of one that is not set."""
    return {name: None if getattr(args, name, value) is None else value for name, value in args.to_dict().items()}


def origin_of(dataset: Any, model: Any, rules: Mapping[str, Rule]) -> dict[str, str]:
    """Returns command line, commit, dataset and base model of the run of this process, without those unknown."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # `python -m` sets it
    argv = [*(["-m", spec.name] if spec else sys.argv[:1]), *sys.argv[1:]]
    found = {
        "command": command_line(argv, rules),
        "commit": commit_of(os.curdir),
        "dataset": dataset_name(dataset),
        "base_model": readable(str(getattr(getattr(model, "config", None), "_name_or_path", None) or "")),
    }
    return {name: text for name, text in found.items() if text}


def command_line(argv: Sequence[str], rules: Mapping[str, Rule]) -> str:
    """Returns the command as one line for a shell, with NOT_SHOWN for values that are not shown.

    Args:
        argv: the script, or -m and the module, and its words as in `sys.argv`.
    """
    script, rule = 2 if argv[:1] == ["-m"] else 1, None
    words = ["python", *argv[:script]]
    for word in argv[script:]:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            words.append(str(shown(word, rule)))
            rule = rule if rule is not None and rule[0].nargs in ("+", "*") else None
        else:
            rule = rules.get(flag)
            # an undeclared flag may be a value that begins with a hyphen
            name = flag if rule is not None else ("--" if flag.startswith("--") else "-") + NOT_SHOWN
            words.append(f"{name}={shown(value, rule)}" if equals else name)
            rule = None if equals else rule
    return as_line(without_home(shlex.join(words)), _LONGEST)


def commit_of(folder: str) -> str:
    """Returns the commit that is checked out in `folder`; "" without a repository.

    git is started only inside a repository: on a Mac without the developer tools, `git` opens a dialog. `rev-parse`
    runs no hook, filter or file system monitor, as `git status` would.
    """
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        inside = Path(folder).absolute()  # raises for a working directory that was removed
        if not any((parent / ".git").exists() for parent in (inside, *inside.parents)):
            return ""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return ""
    commit = done.stdout.decode(errors="replace").strip()
    return commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else ""


def dataset_name(dataset: Any) -> str:
    """Returns name, configuration and split of a dataset of the `datasets` library; "" for any other."""
    for _ in range(4):  # a Subset of torch has its dataset inside
        if parts := name_parts(dataset):
            return readable(", ".join(parts))
        dataset = getattr(dataset, "dataset", None)
    return ""
