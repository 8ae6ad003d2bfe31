"""Makes the pictures of docs/report.md: `python docs/images/make.py FOLDER` for the output_dir of a run."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from mps_trainer.reports.page import page  # noqa: E402
from mps_trainer.reports.sources import record_of  # noqa: E402
from tests.reports.browser import look  # noqa: E402

PICTURES = {
    "report.png": {"width": 1140, "height": 900},
    "report-phone.png": {"width": 500, "height": 900, "dark": True},
}


def main(folder: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "report.html"
        file.write_text(page(record_of(folder)), encoding="utf-8")
        for name, settings in PICTURES.items():
            look(file, Path(temporary), picture=HERE / name, **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
