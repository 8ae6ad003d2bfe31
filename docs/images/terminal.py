"""Draws terminal.png: a run on the simulated mps device, in a terminal, while it evaluates. From the root of a clone:

    .venv/bin/python docs/images/terminal.py

runs the command below on a pseudo-terminal, reads what it draws as a terminal would, and paints that. It needs the
extras `examples` and `dev`: the font is the one that comes with matplotlib.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 123, 60
# evaluations long enough to be looked at, in a run that learns
SHOWN = (
    "mps-trainer simulate run_glue.py --task_name qnli --embedded --do_train --do_eval --logging_steps 58",
    "--eval_strategy steps --eval_steps 58 --per_device_eval_batch_size 1 --output_dir qnli",
)
LABEL = "# the simulated mps device, on Linux: how fast it is says nothing about a Mac"
COMMAND = [sys.executable, "-m", "mps_trainer", *" ".join(SHOWN).split()[1:-2]]
SIZE, LEADING, MARGIN = 15, 21, 16  # pixels
PAPER, INK, PROMPT, COMMENT = "#16181d", "#d8dbe2", "#8fb573", "#8a93a3"


class Screen:
    """As much of a terminal as the bars use: new lines, returns, and one line up."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def take(self, text: str) -> None:
        for piece in re.findall(r"\x1b\[\d*[A-Z]|.", text, flags=re.DOTALL):
            if piece == "\r":
                self.column = 0
            elif piece == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif piece == "\x1b[A":
                self.row = max(self.row - 1, 0)
            elif not piece.startswith("\x1b"):
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + piece + line[self.column + 1 :]
                self.column += 1

    def text(self) -> list[str]:
        return [line.rstrip() for line in self.lines]


def moment(folder: Path) -> list[str]:
    """The lines on the screen at the last picture of an evaluation in the last two fifths of training."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT / "examples" / "text-classification")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PYTHONWARNINGS": "ignore"}
        arguments = [*COMMAND, "--output_dir", str(folder)]
        os.execve(sys.executable, arguments, environ)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, best, rest = Screen(), [], b""
    while select.select([terminal], [], [], 120)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        whole = (rest + data).decode(errors="ignore")
        rest = b""
        screen.take(whole.replace("\r\n", "\r\n"))
        lines = screen.text()
        if any(re.match(r"evaluation +[2-9]\d%", line) for line in lines):
            best = lines if any(re.match(r"training +[6-9]\d%", line) for line in lines) else best
    os.waitpid(process, 0)
    return best


def paint(lines: list[str], path: Path) -> None:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf"
    font = ImageFont.truetype(str(file), SIZE)
    width = int(font.getlength("m") * COLUMNS) + 2 * MARGIN
    image = Image.new("RGB", (width, LEADING * len(lines) + 2 * MARGIN), PAPER)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        place = (MARGIN, MARGIN + number * LEADING)
        ink = PROMPT if line.startswith("$ ") else COMMENT if line.startswith("# ") else INK
        draw.text(place, line.replace("$   ", "    "), font=font, fill=ink)
    image.quantize(32).save(path, optimize=True)


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        lines = moment(Path(folder) / "qnli")
    begin = next(number for number, line in enumerate(lines) if line.startswith("Training on"))
    shown = [line.replace(f"{folder}/", "") for line in lines[begin:] if line]
    # a terminal wraps what is longer than it is wide
    wrapped = [line[start : start + COLUMNS] for line in shown for start in range(0, len(line), COLUMNS)]
    paint([LABEL, f"$ {SHOWN[0]} \\", f"$   {SHOWN[1]}", *wrapped], Path(__file__).with_suffix(".png"))


if __name__ == "__main__":
    main()
