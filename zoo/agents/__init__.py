"""A policy with its recipe and its environment: from a name to an agent that acts."""
