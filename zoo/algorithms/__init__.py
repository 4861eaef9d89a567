"""PPO and GRPO: advantages, losses, the update."""
