"""The run folder and its files."""
