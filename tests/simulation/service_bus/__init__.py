"""Service Bus in the simulation: the far side of its protocol, the client over the network, the rules of copies."""
