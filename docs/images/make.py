"""Makes the pictures of docs/report.md with Chromium: `python docs/images/make.py OUTPUT_DIR`, a classifier's run.

Those in the repository are of a pretrained MiniLM on a CPU, by this command in examples/text-classification. The texts
in them are the project's own.

    python run_glue.py --task_name mnli --data_dir embedded/data/MNLI --model_name_or_path minilm-l6 --do_train \
        --do_eval --num_train_epochs 2 --per_device_train_batch_size 32 --learning_rate 5e-5 --logging_steps 2 \
        --eval_strategy steps --eval_steps 8 --save_steps 8 --save_total_limit 2 --load_best_model_at_end \
        --metric_for_best_model accuracy --output_dir OUTPUT_DIR
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from mps_trainer.reports.pages import run_page  # noqa: E402
from mps_trainer.reports.record import record_of  # noqa: E402
from tests.reports.browser import look  # noqa: E402

PHONE = 390, 844  # pixels; a window of Chromium is wider, a frame in it need not be
# README's picture, by `python docs/images/make.py OUTPUT_DIR --readme`, is of a pretrained MiniLM and GLUE's MRPC on a
# CPU: run_glue.py --model_name_or_path minilm-l6 --task_name mrpc --data_dir MRPC --do_train --do_eval --bf16
#     --num_train_epochs 3 --logging_steps 10 --eval_strategy steps --eval_steps 60 --per_device_train_batch_size 32
README = 900, 797
FRAME = '<body style="margin:0"><iframe src="report.html" style="width:{}px;height:{}px;border:0"></iframe>'


def main(folder: str, option: str = "") -> None:
    with tempfile.TemporaryDirectory() as temporary:
        file, phone = Path(temporary) / "report.html", Path(temporary) / "phone.html"
        whole = run_page(record_of(folder))
        file.write_text(whole, encoding="utf-8")
        part = Path(temporary) / "part.html"
        part.write_text(classification(whole), encoding="utf-8")
        phone.write_text(FRAME.format(*PHONE), encoding="utf-8")
        pictures = [
            (file, "report.png", (1140, 1008)),
            (part, "report-classification.png", (1140, 690)),
            (phone, "report-phone.png", PHONE),
        ]
        for page, name, (width, height) in [(file, "report-mrpc.png", README)] if option == "--readme" else pictures:
            # Chromium draws nothing in the last 90 pixels of a window, which is at least 500 pixels wide
            window = max(width, 500), height + 100
            look(page, Path(temporary), *window, dark=page is phone, picture=HERE / name)
            crop(HERE / name, width, height)


def classification(whole: str) -> str:
    """Returns the page with one of its sections alone."""
    begin, end = whole.index("<h2>Classification</h2>"), whole.index("<h2>Run</h2>")
    return whole[: whole.index("<main>") + len("<main>")] + whole[begin:end] + "</main></body></html>"


def crop(path: Path, width: int, height: int) -> None:
    from PIL import Image

    with Image.open(path) as image:
        image.crop((0, 0, 2 * width, 2 * height)).save(path, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
