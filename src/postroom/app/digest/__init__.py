"""The digest of a day or a week: what came, what was done and by whom, what waits, what was spent. Only counts.

`counts.py` says which days, `counts.py` counts, `letter.py` writes it down, `sending.py` sends it to the owner once.
"""
