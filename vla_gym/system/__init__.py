"""What this machine offers: GL and Vulkan, caches, child processes, places to write."""
