"""ManiSkill3's tabletop tasks, one scene per sub-environment or one batch on GPU physics."""

from vla_gym.simulator import loaded_late

__getattr__ = loaded_late(__name__, {"ManiSkillBatch": "batch", "ManiSkillSimulator": "simulator"})
