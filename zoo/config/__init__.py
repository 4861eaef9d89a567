"""What a run is: typed, checked and counted before it starts."""
