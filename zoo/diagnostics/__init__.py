"""Checks of a machine, and of an environment by its expert."""
