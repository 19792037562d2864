"""Notices training that goes bad, from the metrics that are logged and from the periodic evaluations.

`rules.py` has a function for each kind of warning, `history.py` keeps what they need of a run, `exploration.py`
measures how much a policy explores, `watch.py` is the callback that applies the rules, and `advice.py` says what
usually helps.
"""
