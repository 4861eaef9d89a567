"""Flow policies on a vision-language model (pi0, pi0.5, SmolVLA): config, processor, lerobot's files, base class."""
