"""Trains five steps with trainers of other libraries, evaluates, saves, resumes; writes what each logged as JSON.

    python tests/libraries/train.py FOLDER TRAINER... [--stock]

With transformers' own Trainer if `--stock` is given, else with this package's in its place. `TRAINER@mps` trains on
the simulated mps device instead of the CPU, `TRAINER@bf16` in bfloat16, `TRAINER@default` on the device and in the
precision that the library chooses. Each has a folder of its name. All are trained in one process, because importing
the libraries takes longer than the training.
"""

import contextlib
import importlib
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

os.environ.update(CI="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")
if "--stock" not in sys.argv:
    from mps_trainer.simulator import simulated_mps  # before torch: hides CUDA

    # isort: split

    import mps_trainer.replace_transformers  # noqa: F401

# isort: split

import torch
import transformers
from datasets import Dataset
from tokenizers import processors

from tests.tiny import WORDS, tiny, tokenizer_of_words

CHAT = (
    "{% for message in messages %}{{ '<s> ' + message['content'] + ' </s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> ' }}{% endif %}"
)
NAMES = [word for word in sys.argv[2:] if not word.startswith("--")]
RUN = {
    "output_dir": "out", "max_steps": 5, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 5,
    "save_steps": 3, "report_to": "none", "use_cpu": True, "seed": 7, "learning_rate": 1e-3,
    "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "disable_tqdm": True,
}  # fmt: skip
TRL = {"gradient_checkpointing": False}
# The device that sentence-transformers is given, by the word after @: it looks for one before there is a Trainer.
DEVICES, KIND = {"": "cpu", "bf16": "cpu", "mps": "mps", "default": None}, ""


def tokenizer(*, classifier: bool = False) -> Any:
    """Returns a tokenizer of words, with a template for chats; one for a BERT adds [CLS] and [SEP]."""
    made = tokenizer_of_words()
    if classifier:
        made.backend_tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    else:
        made.chat_template = CHAT
    return made


def llama(kind: Any = transformers.LlamaForCausalLM, **settings: Any) -> Any:
    """Returns a Llama read from a folder, from which TRL reads the model of reference again."""
    tiny(kind, bos_token_id=5, eos_token_id=6, **settings).save_pretrained("llama")
    return kind.from_pretrained("llama")


def folder_of_bert(kind: Any = transformers.BertModel, **settings: Any) -> str:
    """Returns a folder with a BERT and its tokenizer, as sentence-transformers loads them."""
    tiny(kind, **settings).save_pretrained("bert")
    tokenizer(classifier=True).save_pretrained("bert")
    return "bert"


DRAW = random.Random(0)


def text() -> str:
    return " ".join(DRAW.choices(WORDS, k=DRAW.randint(4, 10)))


def rows(make: Any, count: int = 24) -> Dataset:
    return Dataset.from_list([make() for _ in range(count)])


def said(by: str) -> list[dict[str, str]]:
    return [{"role": by, "content": text()}]


def preferences() -> dict[str, Any]:
    return {"prompt": text(), "chosen": " " + text(), "rejected": " " + text()}


def of_data(make: Any) -> dict[str, Any]:
    return {"train_dataset": rows(make), "eval_dataset": rows(make, 8)}


def sft(**settings: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    data = of_data(lambda: {"messages": [*said("user"), *said("assistant")]})
    model, peft = settings.pop("model", None), settings.pop("peft_config", None)
    args = SFTConfig(**{**RUN, **TRL, "max_length": 32, **settings})
    return SFTTrainer(model or llama(), args, processing_class=tokenizer(), peft_config=peft, **data)


def sft_padding_free() -> Any:
    return sft(padding_free=True, max_length=None)


def sft_lora() -> Any:
    from peft import LoraConfig

    return sft(peft_config=LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]))


def sft_4bit() -> Any:
    """QLoRA from a folder, as TRL does it from the hub: quantized by its arguments, and prepared for training."""
    import bitsandbytes.backends.mps.ops  # noqa: F401 - where mps is there at its import, bitsandbytes does so itself
    from peft import LoraConfig

    llama(hidden_size=64, intermediate_size=64)
    quantized = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return sft(
        model="llama",
        model_init_kwargs={"quantization_config": quantized},
        peft_config=LoraConfig(r=4, task_type="CAUSAL_LM", target_modules="all-linear"),
    )


def of_trl(name: str, make_row: Any, model: Any = llama, module: str = "trl", **settings: Any) -> Any:
    """Returns a trainer of TRL. `reward_funcs` goes to it, other settings to its configuration."""
    library = importlib.import_module(module)
    given = {"reward_funcs": settings.pop("reward_funcs")} if "reward_funcs" in settings else {}
    args = getattr(library, f"{name}Config")(**RUN, **TRL, **settings)
    trainer = getattr(library, f"{name}Trainer")
    return trainer(model(), args=args, processing_class=tokenizer(), **given, **of_data(make_row))


def rated() -> dict[str, Any]:
    return {"prompt": text(), "completion": " " + text(), "label": DRAW.random() < 0.5}


def length_reward(completions: Any, **_: Any) -> list[float]:
    return [float(len(set(completion)) + len(completion)) for completion in completions]


def generating(name: str) -> Any:
    settings = {"reward_funcs": length_reward, "num_generations": 2, "max_completion_length": 8}
    return of_trl(name, lambda: {"prompt": text()}, **settings)


def reward_model() -> Any:
    return llama(transformers.LlamaForSequenceClassification, num_labels=1)


def bi_encoder() -> Any:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # without dropout, padding is left out
    model = SentenceTransformer(folder_of_bert(**rates), device=DEVICES[KIND])
    loss = MultipleNegativesRankingLoss(model)
    data = of_data(lambda: {"anchor": text(), "positive": text()})
    return SentenceTransformerTrainer(model, Arguments(**RUN), loss=loss, **data)


def cross_encoder() -> Any:
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    folder = folder_of_bert(transformers.BertForSequenceClassification, num_labels=1)
    model = CrossEncoder(folder, num_labels=1, device="cpu")
    data = of_data(lambda: {"query": text(), "answer": text(), "label": float(DRAW.random() < 0.5)})
    args = CrossEncoderTrainingArguments(**RUN)
    return CrossEncoderTrainer(model, args, loss=BinaryCrossEntropyLoss(model), **data)


def sparse() -> Any:
    from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
    from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss

    model = SparseEncoder(folder_of_bert(transformers.BertForMaskedLM), device="cpu")
    inner = SparseMultipleNegativesRankingLoss(model)
    loss = SpladeLoss(model, inner, query_regularizer_weight=5e-5, document_regularizer_weight=3e-5)
    data = of_data(lambda: {"anchor": text(), "positive": text()})
    return SparseEncoderTrainer(model, SparseEncoderTrainingArguments(**RUN), loss=loss, **data)


def accuracy(predictions: Any, labels: Any) -> float:
    return sum(int(a == b) for a, b in zip(predictions, labels, strict=True)) / len(labels)


def setfit() -> Any:
    from setfit import SetFitModel, Trainer, TrainingArguments

    model = SetFitModel.from_pretrained(folder_of_bert(), device="cpu")
    names = ("output_dir", "max_steps", "logging_steps", "eval_strategy", "eval_steps", "save_steps", "report_to")
    args = TrainingArguments(**{name: RUN[name] for name in names}, batch_size=4, seed=7)
    data = of_data(lambda: {"text": text(), "label": int(DRAW.random() < 0.5)})
    return Trainer(model, args, metric=accuracy, **data)


TRAINERS = {
    "sft": sft,
    "sft_padding_free": sft_padding_free,
    "sft_lora": sft_lora,
    "sft_4bit": sft_4bit,
    "dpo": lambda: of_trl("DPO", preferences, max_length=32),
    "orpo": lambda: of_trl("ORPO", preferences, module="trl.experimental.orpo", max_length=32),
    "kto": lambda: of_trl("KTO", rated, max_length=32),
    "reward": lambda: of_trl("Reward", lambda: {"chosen": text(), "rejected": text()}, reward_model, max_length=32),
    "grpo": lambda: generating("GRPO"),
    "rloo": lambda: generating("RLOO"),
    "bi_encoder": bi_encoder,
    "cross_encoder": cross_encoder,
    "sparse": sparse,
    "setfit": setfit,
}


def made(name: str) -> Any:
    """Returns the trainer, with the same model and data at each call."""
    DRAW.seed(0)
    return TRAINERS[name]()


def train(name: str) -> dict[str, Any]:
    """Trains in the current folder and returns what was logged and written."""
    trainer = made(name)
    inner = getattr(trainer, "st_trainer", trainer)
    left_out: list[Any] = []

    class Watch(transformers.TrainerCallback):
        def on_train_end(self, *given: Any, **more: Any) -> None:
            run = getattr(inner, "_mt_run", None)
            left_out.append(None if run is None else run.padding.fraction_left_out)

    inner.add_callback(Watch())
    trainer.train()
    metrics = trainer.evaluate()
    if inner is trainer:
        trainer.save_model("saved")
    else:  # SetFit saves its model itself
        trainer.model.save_pretrained("saved")
    resumed = []
    if inner is trainer:  # SetFit's trainer does not resume
        again = made(name)
        again.train(resume_from_checkpoint="out/checkpoint-3")
        resumed = again.state.log_history
    return {
        "trainer": next(each.__module__ for each in type(inner).__mro__ if each.__name__ == "Trainer"),
        "is_instance": isinstance(inner, transformers.Trainer),
        "args_are_instance": isinstance(inner.args, transformers.TrainingArguments),
        "device": next(inner.model.parameters()).device.type,
        "left_out": left_out[0],
        "logs": inner.state.log_history,
        "resumed": resumed,
        "metrics": metrics,
        "checkpoint": sorted(path.name for path in Path(inner.args.output_dir).glob("checkpoint-*/*")),
        "saved": sorted(path.name for path in Path("saved").iterdir()),
    }


def main() -> None:
    global KIND
    folder = Path(sys.argv[1]).resolve()
    for name in NAMES:
        trainer, _, KIND = name.partition("@")
        RUN.update(use_cpu=DEVICES[KIND] == "cpu", bf16=KIND == "bf16")
        if KIND == "default":
            del RUN["bf16"]
        (folder / name).mkdir(parents=True)
        os.chdir(folder / name)
        with contextlib.ExitStack() as stack:
            if KIND == "mps":
                # Dropout draws the CPU's random numbers, and bitsandbytes generates no kernels for Metal.
                stack.enter_context(simulated_mps(same_draws_as_cpu=True))
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            found = train(trainer)
        (folder / name / "found.json").write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main()
