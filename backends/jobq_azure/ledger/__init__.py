"""Batches of an Azure queue: a ledger of their tasks in the journal's table, written before the queue is."""
