"""The report of a run: what is recorded while it trains, and the page that is made of it afterwards.

`recorder.py` collects, `record.py` is what is kept of it in a file, `curves.py` and `summary.py` say what a page
shows, `figures.py` draws it and `page.py` puts it together; `comparison.py` does so for several runs.
"""
