"""What benchmarks on MuJoCo share: cameras, GL textures, compiled models on disk."""
