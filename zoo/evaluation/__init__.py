"""Success of a policy on fixed start states."""
