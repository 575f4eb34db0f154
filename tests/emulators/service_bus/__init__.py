"""An Azure Service Bus of this process: AMQP 1.0 and REST on one shared state, for tests and for a try on a laptop.

`emulator.Emulator` starts it; README.md says what it does. What it encodes is a reading of Microsoft's documentation
and of the SDK's source; where the real service is contested, `fidelity.Fidelity` holds a switch. The state, `broker.py`
with `queue.py`, is plain: no input or output, and time from a clock that is given.
"""
