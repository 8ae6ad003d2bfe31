"""Makes docs/api.md, the API reference that GitHub shows, from docs/api.rst, which Sphinx reads.

Both list the same objects with the same docstrings: GitHub runs no autodoc, and Markdown has no index of objects.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_DIRECTIVE = re.compile(r"\.\. (?:auto(?:class|function|exception)|py:data):: (\S+)$")
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(?! )([^:(]+?)(?: \((.+?)\))?:\s+", re.MULTILINE)
_ROLE = re.compile(r":(?:doc|class|func|meth):`(.+?)`")
_WIDTH = 88  # of a signature in one line
_FIELDS = 40  # a class with more parameters has a page for them


@dataclass(frozen=True)
class Listed:
    """An object that the page lists. `members` are the names given, [] for all, None for none."""

    name: str
    object: Any
    members: list[str] | None
    inherited: bool


def markdown(source: str) -> str:
    """Returns the page in Markdown for the text of api.rst."""
    lines, module, out = source.splitlines(), "mps_trainer", []
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        following = lines[index] if index < len(lines) else ""
        if (current := re.fullmatch(r"\.\. currentmodule:: (\S+)", line)) is not None:
            module = current[1]
        elif (directive := _DIRECTIVE.fullmatch(line)) is not None:
            start = index
            while index < len(lines) and (not lines[index].strip() or lines[index].startswith(" ")):
                index += 1
            body = textwrap.dedent("\n".join(lines[start:index])).strip()
            if "py:data" in line:
                out.append(f"### `{directive[1]}`\n\n{_without_roles(body)}\n")
            else:
                out.extend(_object(_listed(directive[1], module, body)))
        elif line and re.fullmatch(r"([=-])\1+", following) and len(following) >= len(line):
            out.append(f"{'#' if following[0] == '=' else '##'} {line}\n")
            index += 1
        elif line.strip():
            text = [line]
            while index < len(lines) and lines[index].strip():
                text.append(lines[index])
                index += 1
            out.append(_without_roles("\n".join(text)) + "\n")
    return "\n".join(out)


def _without_roles(text: str) -> str:
    """Returns text with `:doc:` roles as links and other roles as code."""
    text = re.sub(r":doc:`([\w-]+)`", r"[\1](\1.md)", text)
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _listed(name: str, module: str, options: str) -> Listed:
    full = name if name.startswith("mps_trainer.") else f"{module}.{name}"
    where, _, attribute = full.rpartition(".")
    members = re.search(r"^:members:((?:.*(?:\n(?!:)|$))*)", options, re.MULTILINE)
    names = None if members is None else [word for word in re.split(r"[,\s]+", members[1]) if word]
    return Listed(full, getattr(importlib.import_module(where), attribute), names, ":inherited-members:" in options)


def _object(listed: Listed) -> Iterator[str]:
    """Yields heading, signature and text of an object, then those of its members."""
    name = listed.name.rpartition(".")[2]
    text = inspect.cleandoc(listed.object.__doc__ or "")
    yield f"### `{name}`\n"
    if inspect.isclass(listed.object) and "__init__" not in _own_names(listed.object):
        parameters = []  # an error with a message
    else:
        parameters = list(_parameters(listed.object))
    if len(parameters) > _FIELDS:
        yield f"```py\n{listed.name}(...)\n```\n"
        text = text.split("\nArgs:\n")[0]
    elif parameters or not inspect.isclass(listed.object):
        yield f"```py\n{_signature(listed.name, listed.object)}\n```\n"
    yield from _text(text)
    for member in _members(listed):
        found = inspect.getattr_static(listed.object, member)
        if isinstance(found, (property, cached_property)):
            function, shown = found.fget if isinstance(found, property) else found.func, ""
        else:
            function = getattr(listed.object, member)
            shown = _signature(member, function, bound=not isinstance(found, staticmethod))
        yield f"#### `{name}.{member}`\n"
        if shown:
            yield f"```py\n{shown}\n```\n"
        yield from _text(inspect.getdoc(function) or "")


def _members(listed: Listed) -> list[str]:
    """Returns the members to show: those given, or all public methods and properties with a text, by place."""
    if listed.members is None or listed.members:
        return listed.members or []
    names = _own_names(listed.object) if listed.inherited else list(vars(listed.object))
    found = []
    for name in names:
        value = inspect.getattr_static(listed.object, name)
        value = getattr(value, "__func__", value)
        is_shown = inspect.isfunction(value) or isinstance(value, (property, cached_property))
        if is_shown and value.__doc__ and not name.startswith("_"):
            found.append(name)
    return found


def _own_names(found: type) -> list[str]:
    """Returns the names that a class and its bases in this package define."""
    classes = [each for each in found.__mro__ if each.__module__.startswith("mps_trainer")]
    return list(dict.fromkeys(name for each in classes for name in vars(each)))


def _parameters(found: Any) -> Iterator[str]:
    """Yields each parameter as it is written in Python."""
    kind = None
    for parameter in inspect.signature(found).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            yield "*"
        kind = parameter.kind
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        text = stars + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            given = _default(parameter.default)
            text += f" = {given}" if ":" in text else f"={given}"
        yield text


def _annotation(found: Any) -> str:
    return str(found).strip("'\"") if isinstance(found, str) else inspect.formatannotation(found)


def _default(value: object) -> str:
    """Returns a default as text; an object whose text is its address is shown as dots."""
    return "..." if " at 0x" in repr(value) or repr(value).startswith("<") else repr(value)


def _signature(name: str, found: Any, bound: bool = False) -> str:
    """Returns the call of an object with its types, in lines that a page has room for."""
    signature = inspect.signature(found)
    parameters = [text for text in _parameters(found) if not (bound and text in ("self", "cls"))]
    returned = ""
    if not inspect.isclass(found) and signature.return_annotation is not signature.empty:
        returned = f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){returned}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in parameters) + f"){returned}"


def _text(text: str) -> Iterator[str]:
    """Yields a docstring in Markdown: arguments and errors as lists, and the rest as it is."""
    position = 0
    for section in _SECTION.finditer(text):
        if before := text[position : section.start()].strip():
            yield _without_roles(before) + "\n"
        yield _list(section[1], section[2])
        position = section.end()
    if rest := text[position:].strip():
        yield _without_roles(rest) + "\n"


def _list(title: str, body: str) -> str:
    if title in ("Returns", "Yields"):
        return f"{title}: {_without_roles(' '.join(body.split()))}\n"
    entries = []
    starts = list(_ENTRY.finditer(body))
    for entry, following in zip(starts, [*starts[1:], None], strict=True):
        said = body[entry.end() : following.start() if following else len(body)]
        kind = f" ({entry[2]})" if entry[2] else ""
        names = ", ".join(f"`{name}`" for name in re.split(r",\s*", " ".join(entry[1].split())))
        entries.append(f"- {names}{kind}: {_without_roles(' '.join(said.split()))}")
    return f"{title}:\n\n" + "\n".join(entries) + "\n"
