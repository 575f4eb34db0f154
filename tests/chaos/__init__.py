"""Chaos with real processes: real workers over real stores, struck until nobody could have been lucky (T4, T5, T6).

`campaign.py` strikes at random, `cases.py` deals named blows, `trees.py` kills hostile trees. The tasks write their own
histories (`task_program.py`), the store writes its own (`stores.py`, `store_truth.py`, `azurite_record.py`), and
`checker.py` compares the two when all is over.
"""
