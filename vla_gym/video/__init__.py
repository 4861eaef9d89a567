"""Episodes as mp4: a grid of tiles, and a recorder around any vector environment."""

from vla_gym.video.grid import VideoGrid
from vla_gym.video.record_video import RecordVideo

__all__ = ["RecordVideo", "VideoGrid"]
