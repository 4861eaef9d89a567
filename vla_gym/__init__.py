"""Robot benchmarks for vision-language-action policies, as Gymnasium environments."""

from vla_gym.errors import (
    BadValue,
    MissingDependency,
    UnknownName,
    VLAZooError,
    WorkerFailed,
    WorkerRestarted,
)
from vla_gym.gymnasium_envs import from_gymnasium
from vla_gym.make import make_vec
from vla_gym.registry import find_benchmark, gymnasium_id, list_envs, register_benchmark
from vla_gym.vector.vector_env import VLAVectorEnv

__version__ = "0.1.0"
"""Of all three packages, which are one distribution."""

__all__ = [
    "BadValue",
    "MissingDependency",
    "UnknownName",
    "VLAVectorEnv",
    "VLAZooError",
    "WorkerFailed",
    "WorkerRestarted",
    "__version__",
    "find_benchmark",
    "from_gymnasium",
    "gymnasium_id",
    "list_envs",
    "make_vec",
    "register_benchmark",
]
