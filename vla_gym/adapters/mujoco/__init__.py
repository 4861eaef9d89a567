"""Shared by the benchmarks on MuJoCo: cameras, GL textures, compiled models on disk, loaded tasks."""
