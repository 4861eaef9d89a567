"""Published folders of both layouts, whole and damaged."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.mock_checkpoints import pi0_shapes, rlinf_pi0, write_sparse
from tests.vla_policies.conftest import edit_json
from vla_gym.errors import BadValue, UnknownName, VLAZooError
from vla_gym.observation import encode_instruction
from vla_policies import Conventions, VLAPolicy
from vla_policies.checkpoint_io.weights import write_tensors
from vla_policies.loading import check_checkpoint
from vla_policies.model_folder import Request
from vla_policies.pi0.model import Pi0Backbone
from vla_policies.processing.statistics import Statistics
from vla_policies.resolver import open_folder

from .conftest import Golden

LM_HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"
TABLE = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"


@pytest.fixture
def folder(golden: Golden, tmp_path: Path) -> Path:
    """A copy of the golden checkpoint that may be damaged."""
    copy = tmp_path / golden.folder.name
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(golden.folder / name, copy / name)
    return copy


def change_tensors(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def open_policy(folder: Path, **settings: object) -> VLAPolicy:
    return VLAPolicy.from_pretrained(folder, device="cpu", **settings)  # type: ignore[arg-type]


def same_weights(policy: VLAPolicy, golden: Golden) -> bool:
    got, want = policy.backbone.state_dict(), golden.backbone.state_dict()
    return all(torch.equal(got[name], want[name]) for name in want if name.startswith("network."))


def test_the_token_embedding_may_have_either_name_or_both(golden: Golden, folder: Path) -> None:
    table = load_file(folder / "model.safetensors")[LM_HEAD].clone()
    change_tensors(folder, {LM_HEAD: None, TABLE: table})
    assert same_weights(open_policy(folder), golden)
    change_tensors(folder, {LM_HEAD: table})
    assert same_weights(open_policy(folder), golden)
    change_tensors(folder, {LM_HEAD: table + 1.0})
    with pytest.raises(BadValue, match="two different token embeddings"):
        open_policy(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"paligemma_variant": "gemma_3b"}, UnknownName, "no Gemma variant in .* 'gemma_3b'"),
        ({"image_resolution": [56, 42]}, BadValue, "image_resolution must be square"),
        ({"chunk_size": None}, BadValue, "chunk_size"),
        ({"tiny_overrides": {"vision": {"patches": 3}}}, UnknownName, "'patches'"),
    ],
)
def test_faults_of_the_config_are_named(folder: Path, change: dict, error: type[Exception], message: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    with pytest.raises(error, match=message):
        open_policy(folder)


def save_statistics(folder: Path) -> None:
    """Of 8 numbers of state and 7 of an action, all alike: mean 0.1, std 0.2, q01 -0.9, q99 0.7."""
    numbers = {"mean": 0.1, "std": 0.2, "q01": -0.9, "q99": 0.7}
    tensors = {
        f"{part}.{name}": torch.full((dims,), number)
        for part, dims in (("observation.state", 8), ("action", 7))
        for name, number in numbers.items()
    }
    save_file(tensors, folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")


def map_normalization(folder: Path, mapping: object) -> None:
    edit_json(folder / "config.json", normalization_mapping=mapping)


OLD_NAMES = (
    (".paligemma.lm_head.", ".paligemma.language_model.lm_head."),
    (".paligemma.model.language_model.", ".paligemma.language_model.model."),
    (".paligemma.model.", ".paligemma."),
)
"""Parts of names in today's `lerobot/pi0_base` -> in `lerobot/pi0` of transformers before 4.52."""


def old_folder(golden: Golden, folder: Path, **settings: object) -> Path:
    """`folder` as lerobot wrote it before 0.4: other names and settings, statistics among the weights."""
    tensors = {}
    for name, tensor in load_file(golden.folder / "model.safetensors").items():
        for today, old in OLD_NAMES:
            name = name.replace(today, old)
        tensors[name] = tensor.clone()
    for part, key in (("normalize_inputs", "observation_state"), ("unnormalize_outputs", "action")):
        tensors |= {f"{part}.buffer_{key}.mean": torch.full((7,), 0.5), f"{part}.buffer_{key}.std": torch.ones(7) * 2}
    tensors["normalize_targets.buffer_action.mean"] = torch.full((7,), torch.inf)
    save_file(tensors, folder / "model.safetensors")
    old = {"num_steps": 7, "resize_imgs_with_padding": [224, 224], "proj_width": 1024, "adapt_to_pi_aloha": False}
    old |= {"normalization_mapping": {"STATE": "MEAN_STD", "ACTION": "MEAN_STD"}} | settings
    edit_json(folder / "config.json", lambda config: config.pop("num_inference_steps", None), **old)
    return folder


def test_lerobots_folders_of_before_0_4(golden: Golden, folder: Path) -> None:
    policy = open_policy(old_folder(golden, folder))
    assert same_weights(policy, golden)
    assert isinstance(policy.backbone, Pi0Backbone)
    assert policy.backbone.flow.num_steps == 7
    preprocessing = policy.backbone.config.preprocessing
    for found in (preprocessing.state, preprocessing.action):
        assert found == Statistics(mean=(0.5,) * 7, std=(2.0,) * 7)
    check_checkpoint(open_folder(folder, Request()))
    with pytest.raises(BadValue, match="adapt_to_pi_aloha"):
        open_policy(old_folder(golden, folder, adapt_to_pi_aloha=True))


@pytest.mark.parametrize(
    ("mapping", "state", "action"),
    [
        # 0.5 in the data is (0.5 - 0.1) / 0.2 = 2 deviations, and 2 (0.5 + 0.9) / 1.6 - 1 = 0.75 of the quantiles.
        ({"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}, 2.0, 2.0),
        ({"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"}, 0.75, 0.75),
        ({"STATE": "IDENTITY", "ACTION": "IDENTITY"}, 0.5, 0.5),
        ({"STATE": "IDENTITY", "ACTION": "MEAN_STD"}, 0.5, 2.0),
        ({"STATE": "QUANTILES"}, 0.75, 0.5),
    ],
)
def test_the_folder_says_how_it_is_normalised(folder: Path, mapping: dict, state: float, action: float) -> None:
    save_statistics(folder)
    map_normalization(folder, mapping)
    wanted = Conventions(cameras=("image",), image_size=56, state_dim=8, chunk=1, action_dim=7)
    policy = open_policy(folder, observation_space=wanted.observation_space(), action_space=wanted.action_space())
    assert isinstance(policy.backbone, Pi0Backbone)
    inputs = policy.backbone.prepare(
        {
            "image": torch.zeros(1, 56, 56, 3, dtype=torch.uint8),
            "state": torch.full((1, 8), 0.5),
            "instruction": torch.from_numpy(encode_instruction("open"))[None],
        }
    )
    assert inputs.state_BS is not None
    torch.testing.assert_close(inputs.state_BS[:, :8], torch.full((1, 8), state))
    assert (inputs.state_BS[:, 8:] == 0).all()
    x_BHD = policy.backbone.from_env(torch.full((1, 1, 7), 0.5), inputs)
    torch.testing.assert_close(x_BHD[:, :1, :7], torch.full((1, 1, 7), action))


@pytest.mark.parametrize(
    "mapping",
    [
        {"STATE": "MIN_MAX", "ACTION": "MEAN_STD"},
        {"STATE": "MEAN_STD", "ACTION": "QUANTILES"},
        {"VISUAL": "MEAN_STD"},
        ["MEAN_STD"],
    ],
)
def test_a_normalisation_that_is_not_ours_is_refused(folder: Path, mapping: object) -> None:
    map_normalization(folder, mapping)
    with pytest.raises(VLAZooError, match="normalization_mapping"):
        open_policy(folder)


def openpi_folder(golden: Golden, root: Path) -> Path:
    """The layout that openpi's conversion writes, of a network as small as the golden one."""
    root.mkdir()
    tensors = load_file(golden.folder / "model.safetensors")
    write_tensors(root, {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    config = {
        "action_dim": 32,
        "action_horizon": 50,
        "paligemma_variant": "tiny_vlm",
        "action_expert_variant": "tiny_expert",
        "precision": "float32",
    }
    (root / "config.json").write_text(json.dumps(config))
    for name in ("physical-intelligence/libero", "droid"):
        numbers = {"mean": [0.5] * 8, "std": [2.0] * 8, "q01": [-1.0] * 8, "q99": [3.0] * 8}
        path = root / "assets" / name / "norm_stats.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"norm_stats": {"state": numbers, "actions": numbers}}))
    return root


@pytest.fixture
def tiny_variants(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = golden.backbone.config.network
    variants = {"tiny_vlm": shape.vlm, "tiny_expert": shape.expert}
    monkeypatch.setattr("vla_policies.pi0.checkpoint.VARIANTS", variants)
    monkeypatch.setattr("vla_policies.pi0.checkpoint.words_for_tiny", lambda *_: True)
    monkeypatch.setattr("vla_policies.pi0.checkpoint.OPENPI_VISION", shape.vision)
    monkeypatch.setattr("vla_policies.pi0.checkpoint.OPENPI_VOCABULARY", shape.vocab_size)


@pytest.mark.usefixtures("tiny_variants")
def test_openpis_layout(golden: Golden, tmp_path: Path) -> None:
    root = openpi_folder(golden, tmp_path / "openpi")
    with pytest.raises(BadValue, match="2 data sets; choose one with unnorm_key: droid, physical-intelligence/libero"):
        open_policy(root)
    policy = open_policy(root, unnorm_key="physical-intelligence/libero")
    assert same_weights(policy, golden)
    # The family is told by the weights: only pi0.5 has a time MLP for its norms.
    assert policy.backbone.family == golden.backbone.family
    assert isinstance(policy.backbone, Pi0Backbone)
    got = policy.backbone.config.preprocessing
    assert (got.epsilon, got.epsilon_back, got.resize) == (1e-6, True, "pil")
    assert got.state is not None
    assert got.state.std == (2.0,) * 8
    assert (policy.conventions.state_dim, policy.conventions.action_dim) == (8, 8)
    other = "pi05" if golden.backbone.family == "pi0" else "pi0"
    with pytest.raises(BadValue, match="missing"):
        open_policy(root, family=other, unnorm_key="droid")


@pytest.mark.usefixtures("tiny_variants")
def test_a_benchmarks_data_set_says_what_no_file_does(golden: Golden, tmp_path: Path) -> None:
    """openpi's pi0_libero gives movements relative to the state, its pi05_libero reads no state."""
    root = openpi_folder(golden, tmp_path / "openpi")

    def preprocessing(data_set: str, **options: object) -> tuple[int, str]:
        header = open_folder(root, Request(unnorm_key=data_set, options=options)).header
        found = header.model["preprocessing"]
        return found["delta_dims"], found["prompt_state"]

    pi05 = golden.backbone.family == "pi05"
    assert preprocessing("physical-intelligence/libero") == ((0, "none") if pi05 else (6, "none"))
    assert preprocessing("droid") == ((0, "exact") if pi05 else (0, "none"))
    said = {"delta_dims": 0, "prompt_state": "exact" if pi05 else "none"}
    assert preprocessing("physical-intelligence/libero", **said) == tuple(said.values())


@pytest.mark.parametrize(
    ("pi05", "data_set", "horizon", "dims", "actions"),
    [
        (False, "physical-intelligence/libero", 50, 8, 7),
        (True, "physical-intelligence/libero", 10, 8, 7),
        pytest.param(False, "lerobot/metaworld_mt50", 5, 4, 4, marks=pytest.mark.thorough),
    ],
)
def test_rlinfs_layout_without_a_config(
    tmp_path: Path, pi05: bool, data_set: str, horizon: int, dims: int, actions: int
) -> None:
    """Full-size tensors' names and shapes, no `config.json`, statistics in `<data set>/norm_stats.json`."""
    folder = rlinf_pi0(tmp_path / "sft", data_set, pi05=pi05, dims=dims, actions=actions)
    with pytest.raises(BadValue, match="give backbone_kwargs horizon"):
        _ = open_folder(folder).header
    header = open_folder(folder, Request(options={"horizon": horizon})).header
    assert header.family == ("pi05" if pi05 else "pi0")
    assert (header.model["network"]["horizon"], header.conventions.action_dim) == (horizon, actions)
    assert header.model["preprocessing"]["action"] is not None
    assert header.model["preprocessing"]["state"] is not None
    assert header.model["preprocessing"]["normalization"] == ("quantiles" if pi05 else "mean_std")
    with pytest.raises(UnknownName, match=data_set):
        _ = open_folder(folder, Request(unnorm_key="droid", options={"horizon": horizon})).header


@pytest.mark.parametrize("pi05", [False, True])
def test_the_gripper_of_rlinfs_plate25_is_0_or_1(tmp_path: Path, pi05: bool) -> None:
    """Its environment opens above 0.5 and closes below, on the WidowX alone."""
    for data_set, binarized in (("physical-intelligence/maniskill", True), ("physical-intelligence/libero", False)):
        folder = rlinf_pi0(tmp_path / data_set, data_set, pi05=pi05)
        header = open_folder(folder, Request(options={"horizon": 8})).header
        assert header.model["preprocessing"]["binarize_gripper"] is binarized
    asked = open_folder(folder, Request(options={"horizon": 8, "binarize_gripper": True})).header
    assert asked.model["preprocessing"]["binarize_gripper"]


@pytest.mark.parametrize(
    ("pi05", "width", "hidden", "feature"),
    [(True, 2048, (512, 256, 128), "prefix"), (True, 2048, (1024, 512, 256), "prefix"), (False, 1024, (64,), "expert")],
)
def test_rlinfs_critic_has_the_sizes_of_its_tensors(
    tmp_path: Path, pi05: bool, width: int, hidden: tuple[int, ...], feature: str
) -> None:
    """They differ from recipe to recipe: pi0.5's is smaller on Meta-World. Flow-Noise's network is not read."""
    folder = rlinf_pi0(tmp_path / "rl", "lerobot/metaworld_mt50", pi05=pi05)
    sizes = [width, *hidden, 1]
    heads: dict[str, tuple[int, ...]] = {"noise_head.mlp_logvar.0.weight": (128, 1024), "noise_head.logvar_min": ()}
    for place, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        heads |= {f"value_head.mlp.{2 * place}.weight": (outputs, inputs)}
        heads |= {f"value_head.mlp.{2 * place}.bias": (outputs,)}
    write_sparse(folder / "model.safetensors", pi0_shapes(pi05=pi05) | heads)
    header = open_folder(folder, Request(options={"horizon": 5})).header
    learning = header.model["learning"]
    assert (tuple(learning["value_hidden"]), learning["value_feature"]) == (hidden, feature)


@pytest.mark.usefixtures("tiny_variants")
def test_statistics_beside_the_weights_are_those_under_assets(golden: Golden, tmp_path: Path) -> None:
    under_assets = openpi_folder(golden, tmp_path / "openpi")
    beside = tmp_path / "rlinf"
    shutil.copytree(under_assets, beside)
    shutil.move(beside / "assets" / "physical-intelligence", beside)
    shutil.rmtree(beside / "assets")
    (beside / "config.json").unlink()
    opened = [
        open_policy(under_assets, unnorm_key="physical-intelligence/libero"),
        open_policy(beside, backbone_kwargs={"horizon": 50}),
    ]
    assert opened[0].backbone.config == opened[1].backbone.config
    assert same_weights(opened[1], golden)


def test_weights_of_another_shape_are_refused_before_they_are_read(tmp_path: Path) -> None:
    folder = rlinf_pi0(tmp_path / "sft", "physical-intelligence/libero")
    shapes = {**pi0_shapes(pi05=False), "action_out_proj.weight": (32, 512)}
    write_sparse(folder / "model.safetensors", shapes)
    with pytest.raises(
        BadValue, match=r"'network\.action_out_proj\.weight' is \(32, 512\), the model needs \(32, 1024\)"
    ):
        check_checkpoint(open_folder(folder, Request(options={"horizon": 50})))
    write_sparse(folder / "model.safetensors", {"a.weight": (2, 2)})
    with pytest.raises(BadValue, match=r"lacks config\.json"):
        _ = open_folder(folder).header
