"""Learning from every step: a replay of decisions, and algorithms that go over it."""
