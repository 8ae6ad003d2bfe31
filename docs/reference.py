"""Writes what Sphinx makes from the package, so that GitHub shows it too: `python docs/reference.py`.

With `--check` it writes nothing, and its exit status is 1 if a page is out of date.

docs/api.md is generated whole; the pages of PARTS have generated parts between comments.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import api_page  # noqa: E402
import arguments_page  # noqa: E402
import commands_page  # noqa: E402
import selftests  # noqa: E402

_TOCTREE = re.compile(r"^```\{toctree\}\n:caption: \"?(.*?)\"?\n:hidden:\n\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def list_of_pages() -> str:
    """Returns the pages with links, a line for each kind: GitHub shows no sidebar."""
    lines = []
    for caption, names in _TOCTREE.findall((HERE / "index.md").read_text(encoding="utf-8")):
        links = [f"[{_title(name)}]({name}.md)" for name in names.split()]
        lines.append(f"- **{caption}**: {', '.join(links)}")
    return "\n".join(lines)


def _title(name: str) -> str:
    """Returns the title of a page up to its colon."""
    path = HERE / f"{name}.md"
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(":")[0]


def workflow() -> str:
    return f"```yaml\n{(HERE / 'simulated-mps.yml').read_text(encoding='utf-8')}```"


PARTS = {
    "index.md": {"pages": list_of_pages},
    "arguments.md": {"current": arguments_page.current_tables, "deprecated": arguments_page.deprecated_table},
    "commands.md": {"commands": commands_page.sections},
    "selftest.md": {"selftests": selftests.selftests_table, "speeds": selftests.speeds_table},
    "simulator.md": {"workflow": workflow},
}


def pages() -> dict[str, str]:
    """Returns the text of each page by its name, as it should be."""
    found = {"api.md": api_page.markdown((HERE / "api.rst").read_text(encoding="utf-8"))}
    for name, parts in PARTS.items():
        text = (HERE / name).read_text(encoding="utf-8")
        for part, make in parts.items():
            begin, end = f"<!-- generated: {part} -->", f"<!-- end of {part} -->"
            pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
            if len(pattern.findall(text)) != 1:
                raise ValueError(f"{name} needs one {begin} and one {end} after it.")
            generated = f"{begin}\n\n{make()}\n\n{end}"
            text = pattern.sub(lambda _, generated=generated: generated, text)
        found[name] = text
    return found


def main(arguments: list[str]) -> int:
    changed = {name: text for name, text in pages().items() if (HERE / name).read_text(encoding="utf-8") != text}
    if "--check" in arguments:
        print(*(f"{name} is out of date: run `python docs/reference.py`" for name in changed), sep="\n")
        return 1 if changed else 0
    for name, text in changed.items():
        (HERE / name).write_text(text, encoding="utf-8")
        print(HERE / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
