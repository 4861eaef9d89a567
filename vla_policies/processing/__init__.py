"""From observations to network inputs: batching, images, statistics, words."""
