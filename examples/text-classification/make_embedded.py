"""Writes `embedded/`: a tiny BERT (configuration and tokenizer, no weights) and small samples of the nine GLUE tasks.

    python make_embedded.py            # writes ./embedded, next to this file
    python make_embedded.py OUT        # writes OUT

The sentences are made here, from the word lists and templates below, in the benchmark's own TSV layout. They are meant
to be learned from nothing within seconds on two CPU cores, so they tell of one small world: somebody did something to
some object at some place and time. Every label follows from the text by a rule a reader can state:

    CoLA    1 unless the sentence breaks one of three rules: the verb agrees with its subject in number, "the" stands
            before its noun, every sentence has a verb.
    SST-2   1 when the opinion is good: a praising word, or a blaming word that is negated.
    MRPC    1 when both sentences tell of the same event: who, the action (up to a synonym) and the object all agree.
            Otherwise at least two of the three differ.
    QQP     1 when both questions ask about the same action, object and place; otherwise at least two of them differ.
    STS-B   5 x the share of who, action, object and place that agree.
    MNLI    entailment: the hypothesis tells the premise's event; contradiction: it denies it; neutral: it tells or
            denies another event.
    QNLI    entailment when the sentence tells of the event the question asks about, and so answers when or where.
    RTE     entailment when the text tells the hypothesis's event among its other words.
    WNLI    1 when the second sentence puts the right noun in the place of "it".

No sentence of a pair gives the label away by itself: matching and differing partners are drawn from the same
templates and words. Everything is drawn from one seed, so a second run writes the same bytes.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SEED = 20
# Rows of (train, dev, test). MRPC is the example in the README: 400 rows give +-1.5 % on an accuracy of 0.9. The tasks
# without a pair to compare need less; together with the vocabulary all stay below 1 MB.
ROWS = {"MRPC": (1500, 400, 60), "CoLA": (600, 160, 40), "SST-2": (600, 160, 40)}
ROWS_ELSEWHERE = (900, 160, 40)

WHO = ["anna", "omar", "mira", "jonas", "lena", "victor", "priya", "hugo", "nadia", "felix"]
# base form and past tense, twice: the second verb says the same with another word
ACTIONS = [
    (("buy", "bought"), ("purchase", "purchased")),
    (("sell", "sold"), ("auction", "auctioned")),
    (("fix", "fixed"), ("repair", "repaired")),
    (("lose", "lost"), ("misplace", "misplaced")),
    (("find", "found"), ("discover", "discovered")),
    (("clean", "cleaned"), ("wash", "washed")),
    (("break", "broke"), ("damage", "damaged")),
    (("hide", "hid"), ("conceal", "concealed")),
]
PARTICIPLES = {"broke": "broken", "hid": "hidden"}  # where it is not the past tense
OBJECTS = ["boat", "bicycle", "piano", "lamp", "clock", "kettle", "ladder", "camera", "violin", "mirror"]
PLACES = ["in the village", "at the harbour", "near the station", "by the river", "on the farm", "at the market"]
TIMES = ["on monday", "last week", "in may", "yesterday", "this morning", "in winter"]


@dataclass(frozen=True)
class Event:
    """Somebody did something to an object, somewhere. `action` indexes ACTIONS; the other slots are words."""

    who: str
    action: int
    what: str
    place: str

    def base(self, rng: random.Random) -> str:
        return rng.choice(ACTIONS[self.action])[0]

    def past(self, rng: random.Random) -> str:
        return rng.choice(ACTIONS[self.action])[1]


CHOICES = {"who": WHO, "action": list(range(len(ACTIONS))), "what": OBJECTS, "place": PLACES}


def draw_event(rng: random.Random) -> Event:
    return Event(**{slot: rng.choice(values) for slot, values in CHOICES.items()})


def change(rng: random.Random, event: Event, slots: Iterable[str]) -> Event:
    """The same event with a different value in each of `slots`."""
    new = {slot: rng.choice([value for value in CHOICES[slot] if value != getattr(event, slot)]) for slot in slots}
    return replace(event, **new)


def another(rng: random.Random, event: Event, slots: tuple[str, ...]) -> Event:
    """An event that differs in all of the three `slots`, or in all but one."""
    return change(rng, event, rng.sample(slots, rng.choice([2, 3])))


def clause(rng: random.Random, event: Event) -> str:
    """The event without place and time, active or passive."""
    past = event.past(rng)
    if rng.random() < 0.6:
        return f"{event.who} {past} the {event.what}"
    return f"the {event.what} was {PARTICIPLES.get(past, past)} by {event.who}"


def report(rng: random.Random, event: Event) -> str:
    """The event as a sentence; half of the time with a detail on which no label depends."""
    detail = rng.choice([*PLACES, *TIMES])
    form = rng.randrange(4)
    if form == 0:
        return f"{detail} , {clause(rng, event)} ."
    return f"{clause(rng, event)} {detail} ." if form == 1 else f"{clause(rng, event)} ."


# One function for each task: draws one example, returns its texts and its label

SUBJECTS = [("sailor", "sailors"), ("teacher", "teachers"), ("child", "children"), ("nurse", "nurses")]
SUBJECTS += [("dog", "dogs"), ("farmer", "farmers"), ("singer", "singers"), ("pilot", "pilots")]
VERBS = [("sings", "sing"), ("sleeps", "sleep"), ("waits", "wait"), ("laughs", "laugh"), ("works", "work")]
VERBS += [("swims", "swim"), ("runs", "run"), ("dances", "dance")]


def cola(rng: random.Random) -> tuple[list[str], str]:
    number = rng.randrange(2)
    subject, verb = rng.choice(SUBJECTS), rng.choice(VERBS)
    words = ["the", subject[number], verb[number], rng.choice(PLACES), rng.choice([*TIMES, "", ""])]
    acceptable = rng.random() < 0.6
    if not acceptable:
        fault = rng.choice(["agreement", "article", "verb"])
        if fault == "agreement":
            words[2] = verb[1 - number]
        elif fault == "article":
            words[0], words[1] = words[1], words[0]
        else:
            words[2] = ""
    return [" ".join(" ".join(words).split()) + " ."], str(int(acceptable))


ASPECTS = ["plot", "music", "cast", "ending", "story", "camera work", "dialogue", "film"]
PRAISE = ["gripping", "lovely", "clever", "moving", "funny", "brilliant", "warm", "fresh"]
BLAME = ["dull", "clumsy", "shallow", "noisy", "boring", "awful", "cold", "stale"]
EMPHASIS = ["very", "quite", "really", "simply", ""]
NEGATIONS = ["not", "never", "hardly"]


def sst2(rng: random.Random) -> tuple[list[str], str]:
    praised, negated = rng.random() < 0.5, rng.random() < 0.3
    before = rng.choice(NEGATIONS if negated else EMPHASIS)
    opinion = rng.choice(PRAISE if praised else BLAME)
    first, second = rng.sample(ASPECTS, 2)
    subject = rng.choice([f"the {first} is", f"the {first} and the {second} are", f"for all its {second} , it is"])
    return [" ".join(f"{subject} {before} {opinion}".split()) + " "], str(int(praised != negated))


def mrpc(rng: random.Random) -> tuple[list[str], str]:
    first = draw_event(rng)
    same = rng.random() < 0.6
    second = first if same else another(rng, first, ("who", "action", "what"))
    return [report(rng, first), report(rng, second)], str(int(same))


def question(rng: random.Random, event: Event) -> str:
    opening = rng.choice(["how can i", "how do i", "how do people", "what is the best way to"])
    return f"{opening} {event.base(rng)} a {event.what} {event.place} ?"


def qqp(rng: random.Random) -> tuple[list[str], str]:
    first = draw_event(rng)
    same = rng.random() < 0.4
    second = first if same else another(rng, first, ("action", "what", "place"))
    return [question(rng, first), question(rng, second)], str(int(same))


def stsb(rng: random.Random) -> tuple[list[str], str]:
    first = draw_event(rng)
    slots = rng.sample(sorted(CHOICES), rng.randrange(5))
    second = change(rng, first, slots)
    pair = [f"{clause(rng, event)} {event.place} ." for event in (first, second)]
    return pair, f"{5 * (1 - len(slots) / len(CHOICES)):.3f}"


def mnli(rng: random.Random, openings: tuple[str, ...] = ("", "", "as we heard ,")) -> tuple[list[str], str]:
    premise = draw_event(rng)
    label = rng.choice(["entailment", "neutral", "contradiction"])
    told = another(rng, premise, ("who", "action", "what")) if label == "neutral" else premise
    denied = label == "contradiction" or (label == "neutral" and rng.random() < 0.5)
    hypothesis = f"{told.who} did not {told.base(rng)} the {told.what} ." if denied else f"{clause(rng, told)} ."
    text = f"{rng.choice(openings)} {clause(rng, premise)} {rng.choice(TIMES)} ."
    return [text.strip(), hypothesis], label


def mnli_mismatched(rng: random.Random) -> tuple[list[str], str]:
    """Premises of another genre: openings that the training set does not have, made of words that it has."""
    return mnli(rng, openings=("on the farm we heard ,", "this morning in the village ,", "at the market ,"))


def qnli(rng: random.Random) -> tuple[list[str], str]:
    told = draw_event(rng)
    answers = rng.random() < 0.5
    asked = told if answers else another(rng, told, ("who", "action", "what"))
    when = rng.random() < 0.5
    query = f"{'when' if when else 'where'} did {asked.who} {asked.base(rng)} the {asked.what} ?"
    sentence = f"{clause(rng, told)} {rng.choice(TIMES) if when else told.place} ."
    return [query, sentence], "entailment" if answers else "not_entailment"


def rte(rng: random.Random) -> tuple[list[str], str]:
    told = draw_event(rng)
    follows = rng.random() < 0.5
    claimed = told if follows else another(rng, told, ("who", "action", "what"))
    text = f"{rng.choice(TIMES)} {clause(rng, told)} {told.place} ."
    return [text, f"{clause(rng, claimed)} ."], "entailment" if follows else "not_entailment"


CONTAINERS = ["box", "bag", "drawer", "suitcase", "basket", "trunk"]
CARRIERS = ["horse", "crane", "truck", "donkey"]
LOADS = ["table", "barrel", "statue", "chest", "stone", "sofa"]
# verb phrase, what may stand before and after it, and what is said of the first noun or of the second
SCHEMAS = [
    ("did not fit in", OBJECTS, CONTAINERS, ["big", "long"], ["small", "full"]),
    ("could not carry", CARRIERS, LOADS, ["weak", "tired"], ["heavy", "wide"]),
]


def wnli(rng: random.Random) -> tuple[list[str], str]:
    verb, firsts, seconds, of_first, of_second = rng.choice(SCHEMAS)
    first, second = rng.choice(firsts), rng.choice(seconds)
    first_is_meant, right = rng.random() < 0.5, rng.random() < 0.5
    quality = rng.choice(of_first if first_is_meant else of_second)
    noun = first if first_is_meant == right else second
    detail = rng.choice(["", "", *(f"{place} , " for place in PLACES), *(f"{time} , " for time in TIMES)])
    text = f"{detail}the {first} {verb} the {second} because it was too {quality} ."
    return [text, f"the {noun} was too {quality} ."], str(int(right))


# The benchmark's TSV layouts


@dataclass(frozen=True)
class Layout:
    """Where texts and label stand in a row. In `columns`, "1" and "2" are the texts, "L" the label, "i" the row's
    number; anything else is written as it is, "" as an empty field."""

    header: tuple[str, ...] | None
    columns: tuple[str, ...]


def layout(header: str, columns: str, has_header: bool = True) -> Layout:
    cells = tuple("" if cell == "-" else cell for cell in columns.split())
    return Layout(tuple(header.split("|")) if has_header else None, cells)


NLI = "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse"
NLI += "|sentence1|sentence2"
NLI_DEV = f"{NLI}|label1|label2|label3|label4|label5|gold_label"
STS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
INDEXED_SENTENCE = layout("index|sentence", "i 1")
INDEXED_PAIR = layout("index|sentence1|sentence2", "i 1 2")
LABELLED_PAIR = layout("index|sentence1|sentence2|label", "i 1 2 L")

Draw = Callable[[random.Random], tuple[list[str], str]]


@dataclass(frozen=True)
class Folder:
    """One task: how to draw an example, and the layouts of its labelled and of its unlabelled files."""

    draw: Draw
    labelled: Layout
    unlabelled: Layout


FOLDERS = {
    "CoLA": Folder(cola, layout("", "mps L - 1", has_header=False), INDEXED_SENTENCE),
    "SST-2": Folder(sst2, layout("sentence|label", "1 L"), INDEXED_SENTENCE),
    "MRPC": Folder(
        mrpc,
        layout("Quality|#1 ID|#2 ID|#1 String|#2 String", "L i i 1 2"),
        layout("index|#1 ID|#2 ID|#1 String|#2 String", "i i i 1 2"),
    ),
    "QQP": Folder(
        qqp,
        layout("id|qid1|qid2|question1|question2|is_duplicate", "i i i 1 2 L"),
        layout("id|question1|question2", "i 1 2"),
    ),
    "STS-B": Folder(stsb, layout(f"{STS}|score", "i made - - i - - 1 2 L"), layout(STS, "i made - - i - - 1 2")),
    "MNLI": Folder(
        mnli,
        layout(f"{NLI}|label1|gold_label", "i i i made - - - - 1 2 L L"),
        layout(NLI, "i i i made - - - - 1 2"),
    ),
    "QNLI": Folder(
        qnli, layout("index|question|sentence|label", "i 1 2 L"), layout("index|question|sentence", "i 1 2")
    ),
    "RTE": Folder(rte, LABELLED_PAIR, INDEXED_PAIR),
    "WNLI": Folder(wnli, LABELLED_PAIR, INDEXED_PAIR),
}
MNLI_DEV = layout(NLI_DEV, "i i i made - - - - 1 2 L L L L L L")


def draw_rows(
    draw: Draw, rng: random.Random, count: int, seen: set[tuple[str, ...]]
) -> Iterator[tuple[list[str], str]]:
    """`count` examples whose texts are not in `seen`, so that no example of dev or test was trained on."""
    while count:
        texts, label = draw(rng)
        if tuple(texts) not in seen:
            seen.add(tuple(texts))
            count -= 1
            yield texts, label


def write_tsv(path: Path, rows: Iterable[tuple[list[str], str]], form: Layout) -> None:
    lines = [] if form.header is None else ["\t".join(form.header)]
    for number, (texts, label) in enumerate(rows):
        cells = {"i": str(number), "1": texts[0], "2": texts[-1], "L": label}
        lines.append("\t".join(cells.get(cell, cell) for cell in form.columns))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def write_data(root: Path) -> set[str]:
    """Writes the TSV files of all tasks and returns the words they use."""
    words: set[str] = set()
    for name, folder in FOLDERS.items():
        sizes = zip(("train", "dev", "test"), ROWS.get(name, ROWS_ELSEWHERE), strict=True)
        rng, seen = random.Random(f"{SEED} {name}"), set()
        (root / name).mkdir(parents=True, exist_ok=True)
        for split, count in sizes:
            form = folder.unlabelled if split == "test" else folder.labelled
            sources = {split: folder.draw}
            if name == "MNLI" and split != "train":
                sources = {f"{split}_matched": mnli, f"{split}_mismatched": mnli_mismatched}
                form = form if split == "test" else MNLI_DEV
            for stem, draw in sources.items():
                rows = list(draw_rows(draw, rng, count, seen))
                write_tsv(root / name / f"{stem}.tsv", rows, form)
                words.update(word for texts, _ in rows for text in texts for word in text.split())
    return words


# The model

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_model(root: Path, words: set[str]) -> None:
    """BERT's files but the weights, which the run's seed draws: `config.json` and a lower-casing WordPiece tokenizer.

    The vocabulary holds the words of the data, and every letter, digit and ASCII punctuation mark, so that any other
    English text can be spelled out.
    """
    pieces = string.ascii_lowercase + string.digits
    marks = sorted(set(string.punctuation) - set(pieces))
    vocabulary = [*SPECIAL, *marks, *pieces, *(f"##{piece}" for piece in pieces)]
    vocabulary += sorted(words - set(vocabulary))
    (root / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8", newline="\n")
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        # Without dropout and with four times BERT's initial spread, attention finds equal words in both sentences
        # within some hundred steps; with BERT's 0.02 the loss stays at its plateau for longer than the whole run.
        "initializer_range": 0.08,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 128}
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        (root / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")


def main(root: Path) -> None:
    words = write_data(root / "data")
    write_model(root, words)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "embedded")
