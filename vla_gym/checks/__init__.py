"""The contract of an environment as one reusable test: `check_vla_env("Toy-Reach")`."""

from vla_gym.checks.env_checks import check_vla_env

__all__ = ["check_vla_env"]
