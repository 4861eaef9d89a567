"""Times from counts, worked out by hand."""

from __future__ import annotations

from vla_policies.footprint import Pass
from zoo.config.time_plan import Card, seconds

CARD = Card(memory=24.0, half=100e12, single=50e12, bandwidth=1e12)


def test_the_slowest_of_computing_reading_and_launching_counts():
    # At half the sheet's rates: 5e12 / 50e12 + 5e12 / 25e12 s.
    computing = Pass(peak=0, operations=1, flops={2: 5e12, 4: 5e12})
    assert round(seconds(computing, CARD, 1), 9) == 0.3
    reading = Pass(peak=0, operations=1, flops={})
    assert seconds(reading, CARD, 10**12) == 1.0
    launching = Pass(peak=0, operations=1000, flops={})
    assert seconds(launching, CARD, 1) == 0.008
