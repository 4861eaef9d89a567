from __future__ import annotations

from dataclasses import replace

from scripted_simulator import scripted_benchmark


def test_pictures_are_full_where_the_protocol_does_not_say() -> None:
    benchmark = scripted_benchmark()
    assert benchmark.render_quality == "full"
    assert replace(benchmark, protocol={"render_quality": "fast"}).render_quality == "fast"
    assert benchmark.physics == "exact"
    assert replace(benchmark, protocol={"physics": "fast"}).physics == "fast"
