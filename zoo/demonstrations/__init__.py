"""Demonstrations: recorded, written and read as LeRobot datasets."""
