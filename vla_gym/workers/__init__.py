"""Who runs the sub-environments: this process, worker processes, one batch, other machines."""
