"""The time of a step in TRL and sentence-transformers, on this Trainer and on transformers'."""

from __future__ import annotations

import importlib.util
import os
import random
import time
from functools import partial
from typing import Any

from .benchmark import Benchmark, Entry, Figure, Options, Plan, SkippedError
from .overhead import milliseconds_per_step
from .worker import measure_in_process

LABELS = {"ours": "mps_trainer", "transformers": "transformers Trainer"}
NEEDED = ("trl", "peft", "sentence_transformers", "datasets", "accelerate")
WORDS = [f"w{number}" for number in range(1000)]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "<s>", "</s>"]
SIZES = {
    **{"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256},
    **{"vocab_size": len(SPECIAL) + len(WORDS), "max_position_embeddings": 128, "pad_token_id": 0},
}


def plan(options: Options) -> Plan:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SkippedError(f"Not installed: {', '.join(missing)}. Run: pip install -e '.[libraries]'")
    settings = {"steps": 6, "warm_up": 2} if options.quick else {"steps": 70, "warm_up": 10}
    entries = {
        peer: Entry(label, partial(_run, peer, settings)) for peer, label in LABELS.items() if peer in options.peers
    }
    return Plan(entries, settings)


def _run(peer: str, settings: dict[str, Any], round_: int) -> dict[str, Any]:
    return measure_in_process("libraries", peer=peer, **settings)


def measure(peer: str, steps: int, warm_up: int, folder: str) -> dict[str, Any]:
    """The processor time of a step of each task, from the forward pass of step `warm_up` to that of the last."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    if peer == "ours":
        import mps_trainer.replace_transformers  # noqa: F401
    found: dict[str, Any] = {"learned": {}}
    for name, make in (("sft", sft), ("sft_lora", partial(sft, lora=True)), ("mnrl", mnrl)):
        random.seed(0)
        trainer, model = make(steps, os.path.join(folder, name))
        begun: list[float] = []
        watch = model.register_forward_pre_hook(lambda *_, begun=begun: begun.append(time.process_time()))
        result = trainer.train()
        watch.remove()
        per_step = len(begun) // steps  # the bi-encoder's forward pass comes once for each column
        found[f"{name}_milliseconds"] = milliseconds_per_step(begun[::per_step], warm_up)
        found["learned"][f"{name} loss"] = result.training_loss
    return found


def settings(steps: int, folder: str) -> dict[str, Any]:
    """Arguments that both libraries take: float32 on the CPU, no checkpoints."""
    return {
        **{"output_dir": folder, "max_steps": steps, "use_cpu": True, "report_to": "none", "save_strategy": "no"},
        **{"logging_steps": 50, "disable_tqdm": True, "learning_rate": 1e-3, "seed": 1},
    }


def text(shortest: int, longest: int) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(shortest, longest)))


def tokenizer() -> Any:
    """A tokenizer of words, with a template for chats."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"mask_token": "[MASK]", "bos_token": "<s>", "eos_token": "</s>"}
    ready = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=128, **names)
    ready.chat_template = "{% for m in messages %}{{ '<s> ' + m['content'] + ' </s> ' }}{% endfor %}"
    return ready


def sft(steps: int, folder: str, lora: bool = False) -> tuple[Any, Any]:
    """TRL's trainer of a Llama of two layers, batches of 8 chats; and the model whose forward pass begins a step."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=5, eos_token_id=6))
    chats = [
        [{"role": "user", "content": text(8, 24)}, {"role": "assistant", "content": text(16, 64)}]
        for _ in range(8 * steps)
    ]
    arguments = SFTConfig(
        **settings(steps, folder), per_device_train_batch_size=8, bf16=False, gradient_checkpointing=False
    )
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"messages": chats}),
        processing_class=tokenizer(),
        peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear") if lora else None,
    )
    return trainer, model


def mnrl(steps: int, folder: str) -> tuple[Any, Any]:
    """sentence-transformers' trainer of a BERT of two layers, batches of 32 pairs; and the model inside."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    path = f"{folder}-bert"
    BertModel(BertConfig(**SIZES)).save_pretrained(path)
    tokenizer().save_pretrained(path)
    model = SentenceTransformer(path, device="cpu")
    pairs = Dataset.from_list([{"anchor": text(4, 16), "positive": text(8, 48)} for _ in range(32 * steps)])
    arguments = Arguments(**settings(steps, folder), per_device_train_batch_size=32)
    loss = MultipleNegativesRankingLoss(model)
    return SentenceTransformerTrainer(model, arguments, train_dataset=pairs, loss=loss), model


BENCHMARK = Benchmark(
    title="A step in TRL and sentence-transformers, processor time",
    figures=(
        Figure("sft_milliseconds", "ms a step, SFTTrainer", digits=1, ratio=True, chart=True),
        Figure("sft_lora_milliseconds", "ms a step, SFTTrainer with LoRA", digits=1, ratio=True, chart=True),
        Figure("mnrl_milliseconds", "ms a step, bi-encoder with MNRL", digits=1, ratio=True, chart=True),
    ),
    plan=plan,
    rounds=7,
    baseline="transformers",
    by_default=False,
)
