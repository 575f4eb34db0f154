"""Whoever of worker, guardian and leader is killed, stopped or starved: no tree outlives its lease (P1 to P3)."""
