"""Builds TRL's trainer, generates answers, and saves the model with the adapter merged."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from sft_data import INSTEAD, is_chat

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.loading import errors_about, require_packages, straight_to_device
from mps_trainer.utils.text import sentence

UNMARKED = (
    "The chat template of {name} does not mark what the assistant says, and TRL knows none for it that does. "
    "{consequence}--chat_template_path FILE.jinja gives it one with {{% generation %}} marks."
)


def require_quantizer(model_args: Any) -> None:
    """Raises MisconfigurationException if a model is to be quantized and bitsandbytes is not installed."""
    for flag in ("load_in_4bit", "load_in_8bit"):
        if getattr(model_args, flag):
            require_packages(f"--{flag}", ("bitsandbytes",), "quantization")


def make_trainer(model_args: Any, training_args: Any, train: Any, held: Any) -> Any:
    """Returns TRL's trainer of the named model, or of the tiny one.

    Raises:
        MisconfigurationException: for a model, data and settings that TRL refuses.
    """
    from trl import SFTTrainer, get_peft_config, get_quantization_config

    name, model = model_args.model_name_or_path, None
    if name is None:
        from sft_chats import tiny_model, tiny_tokenizer

        tokenizer = tiny_tokenizer()
        model = tiny_model(tokenizer)
    else:
        tokenizer = load_tokenizer(model_args, training_args)
        training_args.model_init_kwargs = {
            "revision": model_args.model_revision,
            "attn_implementation": model_args.attn_implementation,
            "dtype": model_args.dtype,
            **(training_args.model_init_kwargs or {}),
        }
        settle_assistant_only_loss(training_args, tokenizer, name, is_chat(train))
    what = name or "the tiny model"
    try:
        with straight_to_device(training_args):  # TRL's own device_map puts them there
            trainer = SFTTrainer(
                model=model or name,
                args=training_args,
                train_dataset=train,
                eval_dataset=held,
                processing_class=tokenizer,
                quantization_config=get_quantization_config(model_args),
                peft_config=get_peft_config(model_args),
            )
    except (ValueError, TypeError, KeyError, ImportError, OSError, RuntimeError) as error:
        raise MisconfigurationException(f"SFTTrainer cannot train {what} on these rows: {sentence(error)}") from error
    for rows in (trainer.train_dataset, trainer.eval_dataset):
        if hasattr(rows, "__len__") and not len(rows):  # TRL drops rows of which the loss would count nothing
            raise MisconfigurationException(
                f"--max_length {training_args.max_length} cuts every row off before the answer begins. Raise it."
            )
        if hasattr(rows, "__len__") and "input_ids" in rows.column_names:
            require_fitting(rows["input_ids"], trainer.model.get_input_embeddings().num_embeddings, what)
    return trainer


def require_fitting(rows: Iterable[list[int]], size: int, name: str) -> None:
    """Raises MisconfigurationException for a token beyond the model's `size`: a Mac would read past the table."""
    highest = max(map(max, rows))
    if highest >= size:
        raise MisconfigurationException(
            f"The tokenizer of {name} does not belong to the model: the rows have {highest} among their tokens, and "
            f"the model has {size}, counted from 0. Give --model_name_or_path a folder whose files belong together."
        )


def load_tokenizer(model_args: Any, training_args: Any) -> Any:
    """Returns the tokenizer of the named model, or its processor where it has one, as SFTTrainer would load it."""
    from transformers import AutoProcessor

    with errors_about("tokenizer", model_args.model_name_or_path, INSTEAD):
        return AutoProcessor.from_pretrained(
            model_args.model_name_or_path,
            revision=model_args.model_revision,
            trust_remote_code=training_args.trust_remote_code,
        )


def settle_assistant_only_loss(training_args: Any, tokenizer: Any, name: str, chats: bool) -> None:
    """Sets `assistant_only_loss` where no flag has: True for chats whose template can mark the assistant's words.

    Raises:
        MisconfigurationException: for chats without a template, and if it was asked for and there are no marks.
    """
    asked = training_args.assistant_only_loss
    if not chats or training_args.chat_template_path is not None:
        training_args.assistant_only_loss = bool(asked)
        return
    if not tokenizer.chat_template:
        raise MisconfigurationException(
            f"{name} has no chat template, so it is no model for chats. Take one whose name ends in Instruct, Chat or "
            "it, or give it a template: --chat_template_path FILE.jinja."
        )
    if asked is False:
        return
    from trl import get_training_chat_template
    from trl.chat_template_utils import has_generation_markers

    try:
        marked = has_generation_markers(tokenizer.chat_template) or bool(get_training_chat_template(tokenizer))
    except ValueError:
        marked = False
    if asked and not marked:
        raise MisconfigurationException(UNMARKED.format(name=name, consequence="Leave out --assistant_only_loss; or "))
    if not marked:
        print(UNMARKED.format(name=name, consequence="The loss counts questions as well. "))
    training_args.assistant_only_loss = marked


def answer(trainer: Any, question: str, most: int, chats: bool) -> str:
    """Returns what the model writes in at most `most` tokens, taking the likeliest at each place.

    Args:
        chats: True to ask the question by the chat template, False to go on from it as from a text.
    """
    import torch

    model, processor = trainer.model.eval(), trainer.processing_class
    tokenizer = getattr(processor, "tokenizer", processor)
    if chats and tokenizer.chat_template:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            enable_thinking=False,  # templates that know no thinking do not read it
        )
    else:
        inputs = tokenizer(question, return_tensors="pt")
    inputs = inputs.to(model.device)
    inputs.pop("token_type_ids", None)
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=trainer.args.bf16)
    with torch.no_grad(), autocast:
        written = model.generate(
            **inputs, max_new_tokens=most, do_sample=False, use_cache=True, pad_token_id=tokenizer.pad_token_id
        )
    text = tokenizer.decode(written[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()
    return "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text)


def merge(trainer: Any, model_args: Any) -> str:
    """Writes the model with the adapter in its weights, which loads without PEFT; returns its folder.

    A quantized base is loaded once more, in the type that its files have: merged into 4 bits, the adapter would be
    rounded to what 4 bits can tell apart.
    """
    output_dir = trainer.args.output_dir
    folder = os.path.join(output_dir, "merged")
    model = trainer.accelerator.unwrap_model(trainer.model)
    if model_args.load_in_4bit or model_args.load_in_8bit:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(
            model_args.model_name_or_path,
            revision=model_args.model_revision,
            trust_remote_code=trainer.args.trust_remote_code,
            dtype="auto",
        )
        model = PeftModel.from_pretrained(base, output_dir)
    merged = model.merge_and_unload()
    merged.config.use_cache = True  # gradient checkpointing has switched it off, and whoever generates wants it
    merged.save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    return folder
