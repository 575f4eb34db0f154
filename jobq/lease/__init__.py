"""Who holds: the lease keeper."""
