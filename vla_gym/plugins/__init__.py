"""Our benchmarks in the evaluations of other programs; each module imports that program, nothing else imports them."""
