"""Loads model, tokenizer and adapter: a tiny Llama with random weights, or from a folder or the hub."""

from __future__ import annotations

import sys
from typing import Any

from lora_arguments import DataArguments, ModelArguments
from lora_data import Blocks, read_texts

from mps_trainer import MisconfigurationException
from mps_trainer.scripts.loading import errors_about, reports_kept_back, require_own_weights, straight_to_device
from mps_trainer.utils.text import sentence

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
VOCABULARY = 320  # 256 bytes, the end of a text, and the rest for what the text repeats
END = "<end>"
INSTEAD = (
    "Give --model_name_or_path a folder with config.json, tokenizer and weights of a causal language model, a name on "
    "a hub that can be reached, or train the tiny model with --embedded."
)


def load_tokenizer(model_args: ModelArguments, data_args: DataArguments) -> Any:
    name = model_args.model_name_or_path
    if name is None:
        return make_tokenizer(read_texts(str(data_args.train_file)))
    from transformers import AutoTokenizer

    with errors_about("tokenizer", name, INSTEAD):
        tokenizer = AutoTokenizer.from_pretrained(name, **_source(model_args))
        if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
            raise ValueError("it has no vocabulary, only special tokens.")  # what is made of a missing file
    return tokenizer


def make_tokenizer(texts: list[str]) -> Any:
    """Trains a byte-pair tokenizer on the texts. It can encode every other text too."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def load_model(model_args: ModelArguments, tokenizer: Any, training_args: Any) -> Any:
    name = model_args.model_name_or_path
    if name is None:
        from transformers import LlamaConfig, LlamaForCausalLM

        end = tokenizer.eos_token_id
        return LlamaForCausalLM(
            LlamaConfig(**TINY, vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, pad_token_id=end)
        )
    from transformers import AutoConfig, AutoModelForCausalLM

    source = _source(model_args)
    with errors_about("configuration", name, INSTEAD):
        config = AutoConfig.from_pretrained(name, **source)
    # in float32, whatever the files have: half precision is for --bf16, which keeps the weights that learn whole
    settings = {"dtype": "float32", "ignore_mismatched_sizes": True, "output_loading_info": True, **source}
    with errors_about("model", name, INSTEAD), reports_kept_back():
        with straight_to_device(training_args) as device:
            model, loading = AutoModelForCausalLM.from_pretrained(name, config=config, **settings, **device)
        if require_own_weights(model, loading, name):
            raise ValueError("its weights are not of the shape that its config.json describes.")
    return model


def add_adapter(model: Any, model_args: ModelArguments) -> Any:
    """Returns the model with an adapter. Only the adapter is trained.

    Raises:
        MisconfigurationException: for layers that the model has not, with the names of those that it has.
    """
    from peft import LoraConfig, TaskType, get_peft_model

    targets: Any = model_args.target_modules
    if targets is not None:
        targets = targets[0] if targets == ["all-linear"] else targets
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=model_args.lora_r,
        lora_alpha=model_args.lora_alpha,
        lora_dropout=model_args.lora_dropout,
        target_modules=targets,
        modules_to_save=model_args.modules_to_save,
    )
    _require_layers(model, "modules_to_save", model_args.modules_to_save)
    _require_layers(model, "target_modules", None if targets == "all-linear" else targets)
    try:
        return get_peft_model(model, config)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise MisconfigurationException(
            f"The adapter cannot be added: {sentence(error)} Name layers with --target_modules, or all-linear."
        ) from error


def _require_layers(model: Any, flag: str, names: list[str] | None) -> None:
    layers = {name for name, _ in model.named_modules() if name}
    for wanted in names or []:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in layers):
            linear = {name.split(".")[-1] for name, module in model.named_modules() if _is_linear(module)}
            raise MisconfigurationException(
                f"--{flag}: the model has no layer {wanted!r}. Its linear layers are {', '.join(sorted(linear))}."
            )


def _is_linear(module: Any) -> bool:
    return type(module).__name__ in ("Linear", "Conv1D")  # GPT-2 has the latter


def context(model: Any) -> int:
    """Returns the maximum number of tokens of the model."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 1 else sys.maxsize


def require_fitting(model: Any, blocks: Blocks, prompt: list[int]) -> None:
    """Raises MisconfigurationException for ids without an embedding: a Mac would read past the table."""
    size = model.get_input_embeddings().num_embeddings
    highest = max(max(ids) for ids in (prompt, *(block["input_ids"] for block in (*blocks.train, *blocks.held))))
    if highest >= size:
        raise MisconfigurationException(
            f"The tokenizer does not belong to the model: the text has {highest} among its tokens, and the model has "
            f"{size}, counted from 0. Give --model_name_or_path a folder whose files belong together."
        )


def _source(model_args: ModelArguments) -> dict[str, Any]:
    return {"cache_dir": model_args.cache_dir, "revision": model_args.model_revision, "token": model_args.token}
