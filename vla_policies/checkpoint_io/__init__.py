"""Checkpoint folders and the Hub: strict, and nothing is ever unpickled."""
