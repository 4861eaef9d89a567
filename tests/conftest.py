"""Shared by all tests: one thread per process, so that tests do not fight over the cores, and a Ctrl-C that arrives."""

from __future__ import annotations

import os
import signal

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A suite begun in a shell's background ignores Ctrl-C, and so would the programs whose Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
