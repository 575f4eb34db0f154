"""Chaos with real processes: real workers over real stores, struck until nobody could have been lucky (T4, T5, T6).

`campaign.py` runs one; the tasks write their own histories (`task_program.py`), the store writes its own (`stores.py`,
`azurite_record.py`), and `checker.py` compares the two when all is over. `trees.py` kills hostile trees.
"""
