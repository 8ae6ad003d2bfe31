"""Reads the fenced blocks of README and the documentation, with the labels in the comments before them."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_LABEL = re.compile(r"<!-- (\w+): ([\w-]+) -->")
_FENCE = re.compile(r"( *)```(\{?[\w-]*\}?)")  # indented in lists


@dataclass(frozen=True)
class Block:
    """A fenced block. `kind` and `label` come from a comment `<!-- kind: label -->` on the line before it."""

    page: str
    line: int
    language: str
    kind: str
    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    previous = ""
    for number, line in lines:
        if (fence := _FENCE.match(line)) is not None:
            indent, language = fence.groups()
            label = _LABEL.fullmatch(previous.strip())
            kind, name = label.groups() if label else ("", "")
            body = []
            for _, inside in lines:
                if inside == f"{indent}```":
                    break
                body.append(inside.removeprefix(indent))
            found.append(Block(str(page.relative_to(ROOT)), number, language, kind, name, "\n".join(body)))
        previous = line
    return found


def all_blocks(language: str = "", kind: str = "") -> list[Block]:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    return [b for b in blocks if b.language == (language or b.language) and b.kind == (kind or b.kind)]


def one_line(text: str) -> str:
    """Returns a message in one line, as it is printed; in the pages it is wrapped."""
    return " ".join(text.split())


def joined(text: str) -> str:
    """Returns shell commands with the lines that end in a backslash joined to the next."""
    return re.sub(r"\s*\\\n\s*", " ", text)


def unwrapped(text: str) -> str:
    """Returns printed lines; in the pages, the rest of a long line is indented by four spaces."""
    return re.sub(r"\n {4}(?=\S)", " ", text)
