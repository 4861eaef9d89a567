import pytest
import torch

from vla_gym.errors import BadValue
from vla_policies.processing.statistics import Statistics, check_dims, normalise, unnormalise

STATISTICS = Statistics(mean=(1.0, 2.0), std=(2.0, 4.0), q01=(-1.0, 5.0), q99=(3.0, 5.0))


def test_mean_and_deviation_by_hand() -> None:
    x = torch.tensor([[3.0, 0.0]])
    # Two above the mean is one deviation of 2, two below it half a deviation of 4.
    assert normalise(x, STATISTICS, "mean_std", 0.0).tolist() == [[1.0, -0.5]]
    assert unnormalise(torch.tensor([[1.0, -0.5]]), STATISTICS, "mean_std", 0.0).tolist() == [[3.0, 0.0]]
    assert normalise(x[:, :1], STATISTICS, "mean_std", 2.0).tolist() == [[0.5]]


def test_quantiles_by_hand() -> None:
    # 2 (3 + 1) / 4 - 1; the second dim never moved.
    assert normalise(torch.tensor([[3.0, 5.0]]), STATISTICS, "quantiles", 0.0).tolist() == [[1.0, -1.0]]
    assert unnormalise(torch.tensor([[0.0]]), STATISTICS, "quantiles", 0.0).tolist() == [[1.0]]


def test_without_statistics_nothing_changes() -> None:
    x = torch.tensor([7.0])
    assert normalise(x, None, "mean_std", 1.0) is x
    assert unnormalise(x, None, "quantiles", 1.0) is x


def test_statistics_too_short_are_named() -> None:
    check_dims(STATISTICS, "mean_std", 2, "state")
    with pytest.raises(BadValue, match="action statistics 'q01' have 2 dims, 3 are needed"):
        check_dims(STATISTICS, "quantiles", 3, "action")
