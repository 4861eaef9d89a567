"""Is this machine, this environment sound?"""
