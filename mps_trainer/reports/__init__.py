"""Records a run while it trains, and makes the report of it.

`recorder.py` collects while a run lasts and writes record and page, with `run_facts.py`, `classification.py` and
`fallbacks.py`; `redaction.py` decides what others may see. `record.py` defines the record and its file. A page is made
of it: `summary.py` computes words and numbers, `curves.py` the curves, `charts.py` draws them, and `pages.py` fills
`templates/run.html` or `templates/comparison.html`, which have the sections and tables of a page.
"""
