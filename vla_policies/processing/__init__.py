"""Observations to network inputs: batching, images, statistics, words."""
