"""The server's side of AMQP 1.0 (OASIS standard, 2012), as much as brokers of tests need; it knows no Service Bus.

`types.py` and `encoding.py` are values, `composite.py` and `performatives.py` what frames hold, `connection.py` bytes
and frames, `session.py` sessions, `link.py` links. Not there: transactions, resumed links, dynamic nodes.
"""
