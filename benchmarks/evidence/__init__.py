"""Is reinforcement learning worth it? `python -m benchmarks.evidence`.

trial       one seed of one environment: demonstrations, fine-tuning, reinforcement learning, controls, tests
outcomes    what a trial came to, as a file small enough to keep
table       all trials together: rates over seeds, processor time, p
records/    outcomes, made by the first whole trial
"""
