"""Scripts of experiments, each beside its report."""
