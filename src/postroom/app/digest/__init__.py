"""The digest of a day or a week: what came, what was done and by whom, what waits, what was spent. Only counts.

`content.py` says which days, counts, and writes it down; `sending.py` sends it to the owner once.
"""
