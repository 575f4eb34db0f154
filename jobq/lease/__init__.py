"""Who holds: the lease keeper, named leases, and cursors."""
