"""Pools that run the sub-environments: in this process, worker processes, one batch, other machines."""
