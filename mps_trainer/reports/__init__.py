"""Records a run while it trains, and makes the report of it.

`recorder.py` collects and `record.py` keeps the facts in a file; `description.py`, `origin.py` and `classification.py`
look them up. `curves.py`, `summary.py` and `results.py` choose the content of a page, `figures.py` draws it and
`page.py` puts it together; `comparison.py` does so for several runs.
"""
