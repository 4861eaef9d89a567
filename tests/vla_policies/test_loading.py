import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import mock_checkpoints
from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue, UnknownName
from vla_policies import Conventions, VLAPolicy
from vla_policies.checkpoint_io.manifest import MANIFEST_FILE
from vla_policies.loading import check_checkpoint
from vla_policies.model_folder import Request
from vla_policies.resolver import adapter_folder, find_checkpoint, open_folder, resolve_policy

MakePolicy = Callable[..., VLAPolicy]
MakeObs = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def folder(policy: VLAPolicy, tmp_path: Path) -> Path:
    policy.save_pretrained(tmp_path / "run")
    # Its own hashes would find what the tests below change before anything is read.
    (tmp_path / "run" / MANIFEST_FILE).unlink()
    return tmp_path / "run"


def test_a_folder_keeps_its_sampling_until_it_is_told_otherwise(make_policy: MakePolicy, tmp_path: Path) -> None:
    policy = make_policy(temperature=1.4, top_k=9, greedy="mean")
    policy.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "config.json", "model.safetensors"}
    for loaded in (VLAPolicy.from_pretrained(tmp_path, device="cpu"), make_policy(backbone=tmp_path)):
        assert (loaded.conventions, loaded.sampling) == (policy.conventions, policy.sampling)
    loaded = make_policy(backbone=str(tmp_path), temperature=1.0)
    assert (loaded.sampling.temperature, loaded.sampling.top_k) == (1.0, 9)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadValue, match=f"lacks {name}"):
        VLAPolicy.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"family": "nanoo"}, UnknownName, "no policy family .* 'nanoo'"),
        ({"colour": "red"}, UnknownName, "'colour'"),
        ({"format_version": 2}, BadValue, "format_version 2, this version reads 1"),
        ({"model": {"width": 32, "hat": 1}}, UnknownName, "no setting in model of .* 'hat'"),
        ({"sampling": {"top_k": 2.5}}, BadValue, "top_k of sampling of"),
    ],
)
def test_a_strange_config_is_named(folder: Path, changes: dict, error: type[Exception], message: str) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(error, match=message):
        VLAPolicy.from_pretrained(folder)


def test_a_checkpoint_must_fit_the_environment(folder: Path, conventions: Conventions) -> None:
    other = Conventions(cameras=("image", "wrist_image"), image_size=32, state_dim=3, chunk=5, action_dim=4)
    with pytest.raises(BadValue, match="made for chunk=2, the environment has chunk=5"):
        VLAPolicy(other.observation_space(), other.action_space(), lambda _: 1e-3, backbone=folder)
    with pytest.raises(BadValue, match="backbone_kwargs are for fresh weights"):
        VLAPolicy(
            conventions.observation_space(),
            conventions.action_space(),
            lambda _: 1e-3,
            backbone=folder,
            backbone_kwargs={"size": "tiny"},
        )


def test_family_and_unnorm_key_are_checked(folder: Path) -> None:
    assert VLAPolicy.from_pretrained(folder, family="nano").backbone.family == "nano"
    with pytest.raises(UnknownName, match="no policy family 'pi'"):
        VLAPolicy.from_pretrained(folder, family="pi")
    with pytest.raises(BadValue, match="has no action statistics"):
        VLAPolicy.from_pretrained(folder, unnorm_key="libero_spatial")


@pytest.mark.parametrize(
    ("name", "error"),
    [("nonsense", UnknownName), ("./nonsense", BadValue), ("/no/such/folder", BadValue), ("a/b/c", BadValue)],
)
def test_what_is_neither_family_nor_folder_raises_without_asking_the_hub(
    name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the Hub"))
    with pytest.raises(error, match=r"nano|no checkpoint folder"):
        find_checkpoint(name)


def test_a_hub_id_is_fetched_at_its_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(repo: str, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        asked.append((repo, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert find_checkpoint("someone/a-policy@v1.2") == folder
    assert find_checkpoint("someone/a-policy") == folder
    assert find_checkpoint("someone/a-policy", revision="main") == folder
    assert [(repo, revision) for repo, revision, _ in asked] == [
        ("someone/a-policy", "v1.2"),
        ("someone/a-policy", None),
        ("someone/a-policy", "main"),
    ]
    assert not [pattern for *_, patterns in asked for pattern in patterns if pattern.endswith((".py", ".bin"))]


@pytest.mark.parametrize(("name", "options"), [("nano", {}), ("pi0", {"size": "tiny"})])
def test_fresh_weights_have_no_revision(name: str, options: dict) -> None:
    with pytest.raises(BadValue, match=f"'{name}' means fresh weights here, got revision='main'"):
        VLAPolicy.from_pretrained(name, revision="main", backbone_kwargs=options)


def test_a_config_of_nobody_we_know_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadValue, match=r"neither ours .* nor of a known model_type .* it says 'bert'"):
        VLAPolicy.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "file", "edit", "cause"),
    [
        ("openvla_tiny", "config.json", lambda one: one["text_config"].update(num_attention_heads=5), "hidden size"),
        ("pi0_tiny", "config.json", lambda values: values.update(input_features=None), "AttributeError"),
    ],
)
def test_a_damaged_folder_is_named_with_the_cause(
    golden_root: Path, tmp_path: Path, name: str, file: str, edit: Callable[[dict], None], cause: str
) -> None:
    if not (golden_root / name).is_dir():
        pytest.skip(f"no golden fixtures at {golden_root / name}")
    folder = tmp_path / name
    shutil.copytree(golden_root / name, folder, ignore=shutil.ignore_patterns("golden*"), copy_function=shutil.copyfile)
    edit_json(folder / file, edit)
    key = "libero_spatial" if name == "openvla_tiny" else None
    with pytest.raises(BadValue) as caught:
        VLAPolicy.from_pretrained(folder, unnorm_key=key, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"'{folder}' cannot be opened: a file holds what does not belong there (")
    assert cause in message
    assert "\n" not in message
    assert caught.value.__cause__ is not None


def test_a_folder_that_a_run_replaces_while_it_is_opened(policy: VLAPolicy, tmp_path: Path) -> None:
    """The settings of one policy beside the weights of the next is no damage, and no policy either."""
    best, other = tmp_path / "best", tmp_path / "other"
    policy.save_pretrained(best)
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    policy.save_pretrained(other)
    opened = resolve_policy(best)
    best.rename(tmp_path / "former")
    other.rename(best)
    with pytest.raises(BadValue, match="replaced while it was opened"):
        VLAPolicy.from_pretrained(opened, device="cpu")


def test_an_adapter_whose_base_has_moved_takes_the_one_it_is_given(tmp_path: Path) -> None:
    """As published for ManiSkill: `adapter_config.json` names a path on the machine that trained it."""
    base = mock_checkpoints.openvla(tmp_path / "base", ["libero_10_no_noops"], in_config=["bridge_orig"])
    adapter = mock_checkpoints.openvla_adapter(tmp_path / "adapter", base="/mnt/public/oft-sft")
    with pytest.raises(BadValue, match=r"belongs to the model '/mnt/public/oft-sft', which is not here; give .* base"):
        _ = open_folder(adapter).header
    request = Request(family="openvla-oft", unnorm_key="bridge_orig", base=str(base))
    assert open_folder(adapter, request).header.conventions.action_dim == 7
    mock_checkpoints.openvla_adapter(adapter, base="/mnt/public/oft-sft", size="tiny")
    with pytest.raises(BadValue, match=r"adapter_model\.safetensors' does not fit"):
        check_checkpoint(open_folder(adapter, request))


def test_openvla_ofts_training_folder_is_an_adapter_until_it_is_merged(tmp_path: Path) -> None:
    base = mock_checkpoints.openvla(tmp_path / "base", ["bridge_orig"])
    folder = tmp_path / "sft"
    mock_checkpoints.openvla_adapter(folder / "lora_adapter", base=str(base))
    key = "libero_130_no_noops_trajall"
    (folder / "dataset_statistics.json").write_text(json.dumps({key: mock_checkpoints.statistics()}))
    assert adapter_folder(folder) == folder / "lora_adapter"
    header = open_folder(folder, Request(family="openvla-oft", unnorm_key=key)).header
    assert header.model["unnorm_key"] == key
    mock_checkpoints.openvla(folder, [key])
    assert adapter_folder(folder) is None
    assert open_folder(folder, Request(family="openvla-oft")).header.model["unnorm_key"] == key
