"""What chooses among a policy's decisions: critics of chunks, a prompt with guidance, noise of a flow policy."""
