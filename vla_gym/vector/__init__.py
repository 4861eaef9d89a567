"""The Gymnasium vector environment and what it keeps of its sub-environments."""
