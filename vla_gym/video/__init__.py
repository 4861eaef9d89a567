"""Episodes as mp4: a grid of tiles, and a recorder around any vector environment."""
