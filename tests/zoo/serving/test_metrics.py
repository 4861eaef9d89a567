"""Counters and histograms as Prometheus reads them."""

from __future__ import annotations

from zoo.serving.metrics import Histogram, Metrics


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 2.0, 7.0):
        histogram.add(value)
    assert histogram.lines("x") == [
        "# TYPE x histogram",
        'x_bucket{le="1.0"} 1',
        'x_bucket{le="2.0"} 2',
        'x_bucket{le="+Inf"} 3',
        "x_sum 9.5",
        "x_count 3",
    ]


def test_text_and_summary_of_a_server() -> None:
    metrics = Metrics(clients=1, connections=3, answered=5)
    metrics.refused["message"] += 2
    metrics.batch_size.add(4)
    metrics.batch_size.add(1)
    text = metrics.text()
    assert "vla_zoo_serve_clients 1\n" in text
    assert "vla_zoo_serve_decisions_total 5\n" in text
    assert 'vla_zoo_serve_refusals_total{reason="message"} 2\n' in text
    assert 'vla_zoo_serve_batch_size_bucket{le="2"} 1\n' in text
    assert metrics.summary() == "3 connections, 5 answers, 5 decisions in 2 batches (mean 2.5), refused: 2 message"
    assert Metrics().summary().endswith("0 decisions in 0 batches (mean 0.0), refused: none")
