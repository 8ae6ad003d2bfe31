"""Provides chats about a tool shed and a tiny model with a chat template, for runs without the hub."""

from __future__ import annotations

from typing import Any

from lora_model import END, TINY, make_tokenizer

Chat = list[dict[str, str]]

# tool: (place in the shed, days of a loan, use)
TOOLS = {
    "saw": ("on the left wall", "three", "to cut boards"),
    "ladder": ("behind the door", "two", "to reach the roof"),
    "drill": ("in the red box", "four", "to make holes in wood"),
    "hammer": ("above the bench", "nine", "to drive nails"),
    "spade": ("next to the barrel", "six", "to dig the beds"),
    "rake": ("under the window", "five", "to gather leaves"),
    "plane": ("on the top shelf", "seven", "to smooth a table"),
    "pump": ("below the stairs", "one", "to empty the cellar"),
    "axe": ("beside the stove", "eight", "to split logs"),
    "brush": ("in the blue bucket", "ten", "to paint the fence"),
    "clamp": ("at the end of the rail", "twelve", "to hold parts while glue dries"),
    "barrow": ("outside by the gate", "eleven", "to carry stones"),
}
# Ways to ask for each of the three; the answer has the tool in place of {0} and what is asked for in place of {1}.
TOPICS = (
    (
        ("Where is the {0}?", "I cannot find the {0}.", "Where do you keep the {0}?", "Which place has the {0}?"),
        "The {0} is {1}.",
    ),
    (
        ("How long may I keep the {0}?", "For how many days can I have the {0}?", "When is the {0} due?",
         "How many days is a loan of the {0}?"),
        "You may keep the {0} for {1} days.",
    ),
    (
        ("What is the {0} for?", "What can I do with the {0}?", "Why would I want the {0}?",
         "When do I need the {0}?"),
        "Take the {0} {1}.",
    ),
)  # fmt: skip
# The loss counts what stands between the generation marks, where assistant_only_loss is set.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ 'Answer: ' }}{% generation %}{{ message['content'] + '" + END + "' }}{% endgeneration %}"
    "{% else %}{{ 'Question: ' + message['content'] + '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer: ' }}{% endif %}"
)


def chats() -> tuple[list[Chat], list[Chat]]:
    """Returns training chats and held-out chats, which ask for the same facts in another way."""
    train, held = [], []
    for number, (tool, facts) in enumerate(TOOLS.items()):
        for (questions, answer), fact in zip(TOPICS, facts, strict=True):
            for way, question in enumerate(questions):
                chat = [
                    {"role": "user", "content": question.format(tool)},
                    {"role": "assistant", "content": answer.format(tool, fact)},
                ]
                (held if way == number % len(questions) else train).append(chat)
    return train, held


def tiny_tokenizer() -> Any:
    """Returns a tokenizer made from the chats, with their template."""
    tokenizer = make_tokenizer([message["content"] for part in chats() for chat in part for message in chat])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_model(tokenizer: Any) -> Any:
    """Returns a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    end = tokenizer.eos_token_id
    return LlamaForCausalLM(
        LlamaConfig(**TINY, vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end, pad_token_id=end)
    )
