"""Steering of a policy: critics of chunks, a prompt with guidance, the noise of a flow policy."""
