"""Scripted experts: they read a simulator's privileged state and solve its tasks. Where demonstrations come from."""
