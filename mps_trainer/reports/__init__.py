"""Records a run while it trains, and makes the report of it.

`recorder.py` collects and `record.py` keeps the facts in a file. `curves.py` and `summary.py` choose the content of a
page, `figures.py` draws it and `page.py` puts it together; `comparison.py` does so for several runs.
"""
