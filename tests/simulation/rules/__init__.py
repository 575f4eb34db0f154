"""What must hold in each run, on a model that does not believe the product; and the trace of what happened."""
