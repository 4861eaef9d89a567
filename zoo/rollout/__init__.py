"""Collecting: policy in one hand, environments in the other."""
