"""A simulated machine: clocks, processes and their kernel, sockets, and the real guardian among them."""
