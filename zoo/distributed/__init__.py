"""The processes of a run: who they are, what they exchange, how they shard."""
