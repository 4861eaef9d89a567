"""This machine: GL and Vulkan, caches, child processes, writable paths."""
