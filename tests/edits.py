"""Edits files as a hypothesis strategy draws: bytes, values in JSON, YAML and torch.save's files, whole files."""

import datetime
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mps_trainer.utils import bounded_file
from tests import HUNG_AFTER

PLAIN = [
    None, True, False, 0, 1, -1, 2**63, 10**400, -(10**400), 0.5, 1e308, float("inf"), float("-inf"), float("nan"), "",
    "x", "a\0b", "\ud800", "step", "../x", [], [[]], [1], [None, "x"], {}, {"a": 1}, {"files": {}}, [{"step": "x"}],
]  # fmt: skip
_DOUBLED: list[Any] = [0]
for _ in range(20):
    _DOUBLED = [_DOUBLED, _DOUBLED]  # YAML writes it as a few aliases
IN_YAML = [b"x", {1}, datetime.date(2024, 1, 1), {1: 2}, {(1, 2): 3}, {None: 1}, _DOUBLED]
TENSORS = [
    b"x", (), (1, 2), 1j, {1}, torch.zeros(()), torch.zeros(2), torch.zeros(2).to_sparse(), torch.ones(1).bool(),
    torch.zeros(2, dtype=torch.complex64), torch.zeros(2, device="meta"), torch.tensor(float("nan")), torch.Size([1]),
]  # fmt: skip
NAMES = ["step", "get_lr", "state_dict", "optimizer", "__class__", "__dict__", "x", "", 0, None, "lr", "epoch"]


def edit_value(draw: Any, tree: Any, values: list[Any]) -> Any:
    """Returns `tree` with one of its values replaced, removed or added."""
    if not isinstance(tree, (dict, list, tuple)) or not tree or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(values))
    if isinstance(tree, dict):
        name = draw(st.sampled_from(list(tree)))
        how = draw(st.sampled_from(["replace"] * 4 + ["remove", "add"]))
        if how == "remove":
            return {each: value for each, value in tree.items() if each != name}
        if how == "add":
            return {**tree, draw(st.sampled_from(NAMES)): draw(st.sampled_from(values))}
        return {**tree, name: edit_value(draw, tree[name], values)}
    place = draw(st.integers(0, len(tree) - 1))
    edited = [*tree[:place], edit_value(draw, tree[place], values), *tree[place + 1 :]]
    return type(tree)(edited) if type(tree) in (list, tuple) else edited


def edit_bytes(draw: Any, content: bytes) -> bytes:
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    how = draw(st.sampled_from(["cut", "flip", "put", "repeat"]))
    if how == "cut":
        return content[:place]
    if how == "flip":
        return content[:place] + bytes(byte ^ 255 for byte in content[place : place + 1]) + content[place + 1 :]
    if how == "repeat":
        return content[:place] + content
    return content[:place] + draw(st.binary(max_size=20)) + content[place + draw(st.integers(0, 20)) :]


def edit_content(draw: Any, path: Path) -> None:
    """Edits a value in the file at `path`, or its bytes if an earlier edit has made it unreadable."""
    is_text = path.suffix in (".json", ".yaml")
    try:
        if is_text:
            content = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
        else:
            content = torch.load(path, weights_only=False)
    except Exception:
        path.write_bytes(edit_bytes(draw, path.read_bytes()))
        return
    if is_text:
        edited = edit_value(draw, content, PLAIN if path.suffix == ".json" else PLAIN + IN_YAML)
        text = json.dumps(edited) if path.suffix == ".json" else yaml.safe_dump(edited)
        path.write_text(text, errors="surrogatepass")
    else:
        torch.save(edit_value(draw, content, PLAIN + TENSORS), path)


def exchange(draw: Any, path: Path) -> None:
    """Replaces the file at `path` by another file or by something that is no file."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file())
    how = draw(st.sampled_from(["nothing", "pipe", "folder", "link", "loop", "empty", "other"]))
    content = draw(st.sampled_from(others)).read_bytes() if how == "other" else b""
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how in ("link", "loop"):
        path.symlink_to(path.name if how == "loop" else "gone")
    elif how in ("empty", "other"):
        path.write_bytes(content)


def mutate(draw: Any, folder: Path) -> None:
    path = draw(st.sampled_from(sorted(path for path in folder.iterdir() if path.is_file())))
    ways = [exchange, lambda draw, path: path.write_bytes(edit_bytes(draw, path.read_bytes()))]
    if path.suffix in (".json", ".yaml", ".pt", ".pth"):
        ways += [edit_content] * 4
    draw(st.sampled_from(ways))(draw, path)


def try_edits(count: int, check: Callable[[Any], None]) -> None:
    """Calls `check` with what draws `count` times. A failure is not shrunk, which could train hundreds of times."""

    checks = list(HealthCheck)

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=checks, phases=[Phase.generate])
    @given(st.data())
    def run(data: Any) -> None:
        signal.alarm(HUNG_AFTER)
        try:
            check(data.draw)
        finally:
            signal.alarm(0)

    with mock.patch.object(bounded_file, "PATIENCE", 0.1):  # nothing is ever written to a pipe of `mutate`
        run()


def looks(folder: Path) -> list[tuple[str, int, int]]:
    """Returns name, time and size of each file in `folder`, which an edit or a refusal leaves alone."""
    return sorted((path.name, os.lstat(path).st_mtime_ns, os.lstat(path).st_size) for path in folder.iterdir())
