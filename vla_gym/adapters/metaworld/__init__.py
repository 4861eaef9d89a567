"""Meta-World on bare MuJoCo."""

from vla_gym.simulator import loaded_late

__getattr__ = loaded_late(__name__, {"MetaWorldSimulator": "simulator"})
