"""What to do about a policy that never succeeds: told before a run, while it trains, and on its page."""

NO_SIGNAL_ADVICE = (
    "Start from a policy trained on demonstrations (zoo.collect, then zoo.sft), begin with an easier task or suite, or "
    "pay for progress (a dense reward, for instance env_kwargs task_reward: dense on Meta-World)"
)
"""Remedies, as one sentence without its full stop."""
