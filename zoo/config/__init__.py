"""A run's configuration: typed, checked and counted before it starts."""
