"""Normal ranges of an update's numbers, and what to do about a policy that never succeeds.

Warnings while it trains and the page of a run read them here.
"""


class TrainingWarning(UserWarning):
    """A run goes on, but its numbers are out of their normal range."""


CLIP_FRACTION_HIGH = 0.5
"""Share of the ratios that are clipped."""
KL_HIGH = 0.3
"""k3 estimate of KL(old || new) per element, nats."""
ENTROPY_LOW = 1e-3
"""Mean entropy per element of a choice between tokens, nats."""
NO_SIGNAL_ADVICE = (
    "Start from a policy trained on demonstrations (vla-zoo collect, then vla-zoo sft), begin with an easier task or "
    "suite, or pay for progress (a dense reward, for instance env_kwargs task_reward: dense on Meta-World)"
)
"""Remedies, as one sentence without its full stop."""
