"""Changed weights are sent, and a hash proves equality."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vla_gym import BadValue
from zoo.distributed.weight_sync import WeightSender, WeightUpdate, receive_weights, trained, weights_hash


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net[0].weight.requires_grad_(False)
    return net


def test_first_everything_trained_then_what_changed():
    sent, received = network(), network()
    sender = WeightSender(sent)
    first = sender.update(0)
    # The frozen weight stays at home: 3 + 3 + 1 numbers of 4 bytes.
    assert sorted(first.tensors) == ["0.bias", "1.bias", "1.weight"]
    assert first.size == 28
    with torch.no_grad():
        sent[1].bias += 1
    second = sender.update(1)
    assert sorted(second.tensors) == ["1.bias"]
    receive_weights(received, first, wanted=0)
    receive_weights(received, second, wanted=1)
    assert weights_hash(trained(received)) == weights_hash(trained(sent))
    assert second.digest is None, "a hash of all weights at every version is a debugging aid"
    assert sender.update(2).tensors == {}


def test_the_receiver_keeps_its_tensors():
    sent, received = network(), network()
    before = received[1].bias
    with torch.no_grad():
        sent[1].bias.fill_(7.0)
    receive_weights(received, WeightSender(sent).update(0), wanted=0)
    assert received[1].bias is before
    assert before.item() == 7.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hash_sees_one_number_name_type_and_shape(dtype: torch.dtype):
    base = {"a": torch.zeros(2, 3, dtype=dtype)}
    changed = {"a": torch.zeros(2, 3, dtype=dtype)}
    changed["a"][1, 2] = 2.0**-20
    others = [{"b": base["a"]}, {"a": base["a"].reshape(3, 2)}, {"a": base["a"].double()}, changed]
    assert weights_hash({"a": base["a"].clone()}) == weights_hash(base)
    assert len({weights_hash(tensors) for tensors in [base, *others]}) == 5


def test_what_does_not_fit_is_refused():
    sent, received = network(), network()
    update = WeightSender(sent).update(3)
    with pytest.raises(BadValue, match="version 3 came where version 2 was due"):
        receive_weights(received, update, wanted=2)
    wrong = WeightUpdate(3, {"2.weight": torch.zeros(1)}, update.digest)
    with pytest.raises(BadValue, match=r"'2.weight' \[1\], which the policy here lacks"):
        receive_weights(received, wrong, wanted=3)
    with torch.no_grad():
        received[1].weight += 1
    with pytest.raises(BadValue, match="differ from the first actor rank's"):
        receive_weights(received, WeightUpdate(3, {}, update.digest), wanted=3)
