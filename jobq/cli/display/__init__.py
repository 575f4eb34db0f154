"""What commands show: the worker's log, the live table, events and records as text."""
