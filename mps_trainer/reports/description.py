"""Describes model, data and arguments of a run: the part of a report that does not change with the steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from ..data.buckets import buckets_of
from ..data.samplers import lengths_in_column
from ..distributed.sharded import class_of
from ..training_args import TrainingArguments
from .redaction import Rule, own_class, readable, shown

_MOST_BATCHES = 20_000  # of an epoch, whose lengths are looked at: a hundredth of a second
_MOST_EXAMPLES = 200_000


def name_of(args: Any, folder: str) -> str:
    """Returns `run_name` if there is one, or else the name of the folder."""
    return readable(args.run_name or "") or os.path.basename(os.path.abspath(folder)) or folder


def model_of(model: Any) -> dict[str, Any]:
    """Returns the class and the parameters of a model; `operations_per_token` where they can be estimated."""
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    known: dict[str, Any] = {
        "class": class_of(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in parameters if p.requires_grad),
        "dtype": ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
    }
    # the estimate that the Trainer's counter of operations makes, from which the number of tokens follows
    if getattr(model, "main_input_name", None) == "input_ids" and hasattr(model, "num_parameters"):
        known["operations_per_token"] = 6 * model.num_parameters(exclude_embeddings=True)
    return known


def classes_of(model: Any) -> dict[int, str]:
    """Returns the names of the classes of a classifier, {} if it has none."""
    names = getattr(getattr(model, "config", None), "id2label", None)
    return dict(names) if isinstance(names, dict) else {}


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
    if hasattr(dataset, "__len__"):
        known["examples"] = len(dataset)
    sampler = buckets_of(loader)
    if sampler is not None:
        known["buckets"] = list(sampler.buckets.lengths)
        if len(sampler) <= _MOST_BATCHES:
            known["padded"] = _padded(sampler)
    lengths = sampler.lengths.tolist() if sampler is not None else _lengths(dataset)
    if lengths:
        known["lengths"] = _spread(lengths)
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


def _lengths(dataset: Any) -> list[int] | None:
    if not hasattr(dataset, "__len__") or len(dataset) > _MOST_EXAMPLES:
        return None
    return lengths_in_column(dataset, "input_ids")


def _spread(lengths: list[int]) -> dict[str, float]:
    ordered, last = sorted(lengths), len(lengths) - 1
    return {
        "shortest": ordered[0],
        "median": ordered[last // 2],
        "95th percentile": ordered[round(0.95 * last)],
        "longest": ordered[-1],
        "mean": sum(ordered) / len(ordered),
    }


def arguments_of(args: Any, rules: Mapping[str, Rule]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all arguments, and those that differ from their defaults with both values, as `rules` allow."""
    values = {n: None if getattr(args, n, v) is None else v for n, v in args.to_dict().items()}  # of a token, its name
    own = own_class(args)
    defaults = {f.name: getattr(f.default, "value", f.default) for f in fields(args) if f.default is not MISSING}
    # as they are once they have been derived from each other, which a class of the user's may do in its own way
    defaults |= own(output_dir=args.output_dir).to_dict() if issubclass(own, TrainingArguments) else {}
    changed = [name for name, value in values.items() if name != "output_dir" and value != defaults.get(name)]
    visible, usual = ({n: shown(v, rules.get(f"--{n}")) for n, v in each.items()} for each in (values, defaults))
    return visible, {name: [visible[name], usual.get(name)] for name in changed}
