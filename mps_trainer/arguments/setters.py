"""Gives the arguments transformers' methods that set several of them at once."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

REPLACED: dict[str, Any] = {}  # transformers' own classes by name, while replace_transformers has replaced them


class Setter:
    """A method of transformers' arguments, loaded when it is used, because it needs torch.

    It sets all of its arguments, or none if one of them is invalid, and returns the arguments.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, args: Any, owner: type) -> Callable[..., Any]:
        from transformers import training_args

        method = getattr(REPLACED.get("TrainingArguments", training_args.TrainingArguments), self._name)
        if args is None:
            return method
        method = types.MethodType(method, args)

        @functools.wraps(method)
        def set_and_check(*given: Any, **named: Any) -> Any:
            before = dict(vars(args))
            try:
                method(*given, **named)
                args.eval_delay = args.eval_delay or 0
                args.check()
            except ValueError:
                vars(args).clear()
                vars(args).update(before)
                raise
            return args

        return set_and_check


class Setters:
    """Methods with transformers' names and defaults, which sometimes differ from the defaults of the fields."""

    set_training = Setter()
    set_evaluate = Setter()
    set_testing = Setter()
    set_save = Setter()
    set_logging = Setter()
    set_push_to_hub = Setter()
    set_optimizer = Setter()
    set_lr_scheduler = Setter()
    set_dataloader = Setter()
