"""One module per benchmark; simulators are imported inside functions, in workers only."""
