"""Trained agents of vla-zoo: `<algo>/<env>/` beside this file, for `-i agents/...` and `--policy agents/...`."""

__version__ = "0.1.0"
