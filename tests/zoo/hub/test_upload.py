"""Runs on the Hub and back, against a stand-in of it; and everything that can go wrong on the way."""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard

import vla_gym
from tests.zoo.launching import TINY
from tests.zoo.loopback_hub import TOKEN, LoopbackHub
from tests.zoo.stand_ins import toy_config
from vla_policies import VLAPolicy
from vla_policies.conventions import conventions_of
from zoo import evaluate, load_from_hub, play, push_to_hub, record_video, train
from zoo.agents import measuring
from zoo.cli.agent import plan_rollout
from zoo.cli.main import guarded, main
from zoo.hub.upload import publish, publish_trained, repository_files
from zoo.runs.evaluations import find_evaluation, weights_sha256
from zoo.runs.folder import RunFolder, create_run_folder, describe_run

pytestmark = [
    pytest.mark.hub,
    # huggingface_hub's own: it hands httpx2 its uploads in a way that is going out of use.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]

BASE, RUN = "org/base", "me/run"
SHORT = "--env Toy-Reach --seed 0 --num-threads 1 --device cpu"
PARAMS = ["num_envs:4", "n_steps:4", "batch_size:16", "n_epochs:1"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """An empty Hub that this process talks to with a right token and an empty cache."""
    server = LoopbackHub()
    constants = "huggingface_hub.constants."
    monkeypatch.setattr(constants + "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants + "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants + "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants + "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants + "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def push_base() -> None:
    """A small OpenVLA-OFT for Toy-Reach, published as the base that adapters belong to."""
    envs = vla_gym.make_vec("Toy-Reach", num_envs=1, chunk=4)
    view = envs.as_sb3()
    torch.manual_seed(0)
    policy = VLAPolicy(
        view.observation_space,
        view.action_space,
        lambda _: 1e-3,
        backbone="openvla-oft",
        backbone_kwargs={"size": "tiny"},
        action_spec=envs.benchmark.action_spec,
    )
    assert conventions_of(view.observation_space, view.action_space).chunk == 4
    policy.save_pretrained("base")
    envs.close()
    api = HfApi()
    api.create_repo(BASE)
    api.upload_folder(repo_id=BASE, folder_path="base")


def train_nano(folder: str, *flags: str) -> int:
    argv = [*SHORT.split(), "-n", "100", "--eval-episodes", "3", "-f", folder, *flags]
    return train.run([*argv, "-params", *PARAMS, TINY])


def train_adapter(*flags: str) -> int:
    argv = [*SHORT.split(), "--policy", BASE, "-n", "100", "--eval-episodes", "3", *flags]
    kwargs = "policy_kwargs:{backbone_kwargs: {lora: {rank: 2}, recompute: false}}"
    return train.run([*argv, "-params", *PARAMS, kwargs])


def observation() -> dict[str, np.ndarray]:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=2, chunk=4, seed=5).as_sb3()
    obs = envs.reset()
    envs.close()
    return obs  # type: ignore[return-value]


def logits(policy: VLAPolicy) -> torch.Tensor:
    return policy.act(observation(), deterministic=True).logprob_BKA


def test_an_adapter_goes_to_the_hub_and_back(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    push_base()
    assert train_adapter("--push-to-hub", RUN) == 0
    assert f"pushed to  {hub.url}/{RUN}  (private)\n" in capsys.readouterr().out
    repo, run = hub.repos[RUN], Path("logs/ppo/Toy-Reach_1")
    assert repo.private
    step = next((run / "checkpoints").iterdir()).name
    assert {name for name in repo.files if "/" not in name} >= {
        *("adapter_config.json", "adapter_model.safetensors", "value_head.safetensors", "vla_zoo.json", "replay.mp4"),
        *("README.md", "config.yml", "args.yml", "command.txt", "protocol.json", "evaluation.json"),
    }
    assert f"checkpoints/{step}/optimizer.safetensors" in repo.files
    assert not [name for name in repo.files if name.endswith((".pkl", ".pt", ".pth", ".bin", ".zip", ".py"))]
    assert "model.safetensors" not in repo.files
    adapter = json.loads(repo.files["adapter_config.json"])
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == (BASE, hub.repos[BASE].main)

    # The policy, by us and by plain peft; only what a policy needs is fetched.
    wanted = logits(VLAPolicy.from_pretrained(run / "best", device="cpu"))
    hub.requests.clear()
    policy = VLAPolicy.from_pretrained(RUN, device="cpu")
    assert torch.equal(logits(policy), wanted)
    assert not [line for line in hub.requests if "checkpoints/" in line or "replay" in line]
    network = VLAPolicy.from_pretrained(BASE, device="cpu").backbone.network
    peft.PeftModel.from_pretrained(network, RUN)
    got, held = network.state_dict(), policy.backbone.network.state_dict()
    assert got.keys() == held.keys()
    assert all(torch.equal(got[name], held[name]) for name in held)

    # On from there, in a new folder; then everything once more without a network.
    assert train.run(["-i", RUN, "-n", "200", "--num-threads", "1", "-f", "more"]) == 0
    lines = Path("more/ppo/Toy-Reach_1/metrics.jsonl").read_text().splitlines()
    assert min(json.loads(line)["step"] for line in lines) > 100
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert torch.equal(logits(VLAPolicy.from_pretrained(RUN, device="cpu")), wanted)
    assert evaluate.run(["-i", RUN, "--eval-episodes", "3", "--num-threads", "1"]) == 0
    assert Path("results.json").is_file()
    assert load_from_hub.run([RUN, "-f", "fetched"]) == 0
    fetched = Path("fetched/ppo/Toy-Reach_1")
    assert torch.equal(logits(VLAPolicy.from_pretrained(fetched / "best", device="cpu")), wanted)
    assert (fetched / "checkpoints" / step / "training_state.json").is_file()
    assert (fetched / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert hub.requests == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short run with whole weights."""
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        assert train_nano("logs") == 0
    return folder


@pytest.fixture
def run(hub: LoopbackHub, trained: Path) -> Path:
    """That run, in this test's own folder."""
    shutil.copytree(trained / "logs", "logs")
    return Path("logs/ppo/Toy-Reach_1")


def test_the_card_says_what_was_measured(run: Path, hub: LoopbackHub) -> None:
    assert push_to_hub.run(["-i", str(run), RUN]) == 0
    card = ModelCard(hub.repos[RUN].files["README.md"].decode())
    record = json.loads((run / "evaluation.json").read_text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("vla-zoo", "robotics")
    assert {"vla-zoo", "Toy-Reach", "ppo", "reinforcement-learning"} <= set(card.data.tags)
    (result,) = card.data.eval_results
    assert (result.dataset_name, result.metric_type) == ("Toy-Reach", "success_rate")
    assert result.metric_value == round(record["success"]["success"], 4)
    assert result.metric_args["episodes"] == 3
    assert f"Protocol: {record['summary']}." in card.text
    assert f'VLAPolicy.from_pretrained("{RUN}")' in card.text
    assert f"vla-zoo train -i {RUN} -n {2 * record['num_timesteps']} " in card.text


def test_a_film_by_another_protocol_is_not_the_replay(run: Path, tmp_path: Path) -> None:
    (of_training,) = (run / "videos").iterdir()
    asked = ["-i", str(run), "--episodes", "1", "--num-threads", "1", "--device", "cpu"]
    assert record_video.run([*asked, "--stochastic"]) == 0
    assert (run / "videos" / "recorded_stochastic.mp4").is_file()
    assert repository_files(RunFolder(run), RUN, tmp_path)["replay.mp4"] == of_training
    assert record_video.run(asked) == 0
    assert repository_files(RunFolder(run), RUN, tmp_path)["replay.mp4"].name == "recorded.mp4"


def test_weights_of_another_evaluation_are_not_praised(run: Path, hub: LoopbackHub) -> None:
    record = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps({**record, "num_timesteps": 7}))
    with np.load(run / "evaluations.npz") as log:
        arrays = dict(log)
    np.savez(run / "evaluations.npz", **{**arrays, "timesteps": arrays["timesteps"] + 7})
    assert push_to_hub.run(["-i", str(run), RUN, "--weights-only"]) == 0
    card = ModelCard(hub.repos[RUN].files["README.md"].decode())
    assert card.data.eval_results is None
    assert "These weights have not been evaluated." in card.text
    assert "vla-zoo train -i" not in card.text
    assert not [name for name in hub.repos[RUN].files if name.startswith("checkpoints/")]


def test_publicly_under_an_organisation(run: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["push-to-hub", "-i", str(run), "-orga", "org", "--public"]) == 0
    assert capsys.readouterr().out == f"pushed to  {hub.url}/org/ppo-Toy-Reach-nano  (public)\n"
    repo = hub.repos["org/ppo-Toy-Reach-nano"]
    assert not repo.private
    assert repo.files["model.safetensors"] == (run / "best" / "model.safetensors").read_bytes()


def test_a_space_plays_the_run(
    run: Path, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gradio")
    capsys.readouterr()
    assert push_to_hub.run(["-i", str(run), RUN, "--space"]) == 0
    said = capsys.readouterr().out.splitlines()[1]
    assert said.startswith(f"play it at {hub.url}/spaces/{RUN}  (give it a secret HF_TOKEN")
    space = hub.repos[f"spaces/{RUN}"]
    assert space.private
    assert set(space.files) == {"README.md", "app.py", "packages.txt", "requirements.txt"}
    assert space.files["requirements.txt"].decode() == f"vla-zoo[play]=={vla_gym.__version__}\n"
    card = yaml.safe_load(space.files["README.md"].decode().split("---\n")[1])
    assert (card["sdk"], card["app_file"], card["models"]) == ("gradio", "app.py", [RUN])

    # Its program is the command, which finds the run where it was sent.
    app, played = Path("app.py"), list[str]()
    app.write_bytes(space.files["app.py"])
    parser = play.parser()
    monkeypatch.setattr("zoo.play.run", lambda argv: played.append(plan_rollout(parser.parse(argv), episodes=1).env))
    with pytest.raises(SystemExit):
        runpy.run_path(str(app))
    assert played == ["Toy-Reach"]


def test_a_local_base_is_warned_of_and_can_be_renamed(hub: LoopbackHub, capsys: pytest.CaptureFixture[str]) -> None:
    push_base()
    argv = [*SHORT.split(), "--policy", "base", "-n", "64", "--eval-episodes", "0", "-params", *PARAMS]
    assert train.run([*argv, "policy_kwargs:{backbone_kwargs: {lora: {rank: 2}, recompute: false}}"]) == 0
    capsys.readouterr()
    assert push_to_hub.run(["-i", "logs/ppo/Toy-Reach_1", RUN]) == 0
    assert "base', a folder that others do not have; --base HUB_ID" in capsys.readouterr().err
    assert push_to_hub.run(["-i", "logs/ppo/Toy-Reach_1", RUN, "--base", BASE]) == 0
    assert capsys.readouterr().err == ""
    card = yaml.safe_load(hub.repos[RUN].files["README.md"].decode().split("---\n")[1])
    assert (card["library_name"], card["base_model"], card["base_model_relation"]) == ("peft", BASE, "adapter")
    Path("base").rename("moved")
    assert VLAPolicy.from_pretrained(RUN, device="cpu").backbone.source == BASE


def made_up(weights: str, policy: str = "nano") -> RunFolder:
    """A run without training: whole weights of this content in best/."""
    run = create_run_folder(Path("made_up"), "ppo", "Toy-Reach")
    config = toy_config(policy=policy)
    describe_run(run, config=config, args={}, command=["x"], protocol={})
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    (run.best / "model.safetensors").write_text(weights)
    return run


def test_a_repository_holds_the_evidence_of_its_weights_alone(hub: LoopbackHub) -> None:
    always = {"README.md", "args.yml", "command.txt", "config.json", "config.yml", "model.safetensors"}
    always.add("protocol.json")
    records = {"results.json", "evaluation.json", "monitor.csv", "metrics.jsonl"}
    first = made_up("first")
    for name in records:
        (first.path / name).write_text("{}")
    weights = weights_sha256(first.best)
    (first.path / "results.json").write_text(json.dumps({"weights_sha256": weights}))
    first.videos.mkdir()
    (first.videos / "step_1.mp4").write_text("film")
    (first.best / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE}))
    assert publish(first, RUN) == f"{hub.url}/{RUN}  (private)"
    beside = {"score.json", "manifest.json", "vla_zoo.json", "dataset_statistics.json"}
    for name in beside:
        HfApi().upload_file(path_or_fileobj=b"{}", path_in_repo=name, repo_id=RUN)
    assert set(hub.repos[RUN].files) == always | records | beside | {"replay.mp4", "adapter_config.json"}
    HfApi().upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id=RUN)
    # Another run, with results of other weights: neither those nor what the first has left stays beside it.
    second = made_up("second")
    (second.path / "results.json").write_text(json.dumps({"weights_sha256": weights}))
    kept = publish(second, RUN, public=True)
    assert kept == f"{hub.url}/{RUN}  (private, as it was; its settings on the Hub can change that)"
    assert set(hub.repos[RUN].files) == always | {"notes.txt"}


# What goes wrong --------------------------------------------------------------------------------------


def go_offline(hub: LoopbackHub, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def give_wrong_token(hub: LoopbackHub, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("HF_TOKEN", "hf_wrong")


def give_no_token(hub: LoopbackHub, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("HF_TOKEN")
    patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "nowhere")


def hang_up(hub: LoopbackHub, patch: pytest.MonkeyPatch) -> None:
    hub.break_uploads = True


@pytest.mark.parametrize(
    ("break_it", "named"),
    [(go_offline, "HF_HUB_OFFLINE"), (give_wrong_token, "401"), (give_no_token, "HF_TOKEN"), (hang_up, "127.0.0.1")],
)
def test_a_failed_push_is_one_line_and_fails_no_training(
    run: Path,
    hub: LoopbackHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[LoopbackHub, pytest.MonkeyPatch], None],
    named: str,
) -> None:
    break_it(hub, monkeypatch)
    capsys.readouterr()
    assert guarded(push_to_hub.run, ["-i", str(run), RUN]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert (said.err.count("\n"), said.out) == (1, "")
    # Nothing half sent.
    assert RUN not in hub.repos or hub.repos[RUN].files == {}
    after_training = publish_trained(RunFolder(run), RUN)
    assert after_training.startswith("warning: ")
    assert after_training.endswith(f"vla-zoo push_to_hub -i {run} {RUN}")


def lose_weights(run: Path) -> None:
    (run / "best" / "model.safetensors").unlink()


def flip_a_bit(run: Path) -> None:
    weights = run / "best" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def flip_a_bit_of_the_checkpoint(run: Path) -> None:
    (moments,) = (run / "checkpoints").glob("step_1*/optimizer.safetensors")
    content = moments.read_bytes()
    moments.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def lose_the_checkpoints_state(run: Path) -> None:
    (state,) = (run / "checkpoints").glob("step_1*/training_state.json")
    state.unlink()


def link_a_record_elsewhere(run: Path) -> None:
    (run / "monitor.csv").unlink()
    (run / "monitor.csv").symlink_to("/etc/hostname")


def link_the_film_elsewhere(run: Path) -> None:
    Path("film").write_text("newer than the run's own")
    (run / "videos" / "step_9999.mp4").symlink_to(Path("film").absolute())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_weights, "lacks model.safetensors"),
        (flip_a_bit, "model.safetensors has other content"),
        (flip_a_bit_of_the_checkpoint, "optimizer.safetensors has other content"),
        (lose_the_checkpoints_state, "training_state.json"),
        (link_a_record_elsewhere, "names 'monitor.csv', which links to a place outside"),
        (link_the_film_elsewhere, "names 'step_9999.mp4', which links to a place outside"),
    ],
)
def test_a_damaged_run_is_not_sent_over_a_good_one(
    run: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], message: str
) -> None:
    assert guarded(push_to_hub.run, ["-i", str(run), RUN]) == 0
    good = dict(hub.repos[RUN].files)
    damage(run)
    capsys.readouterr()
    assert guarded(push_to_hub.run, ["-i", str(run), RUN]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert hub.repos[RUN].files == good


def test_what_a_policy_does_not_read_stays_here(run: Path, hub: LoopbackHub) -> None:
    for name in ("id_rsa", "old.pkl", "modeling.py"):
        (run / "best" / name).write_text("mine")
        (run / "checkpoints" / f"step_{RunFolder(run).saved_steps()[-1]}" / name).write_text("mine")
    assert guarded(push_to_hub.run, ["-i", str(run), RUN]) == 0
    assert b"mine" not in hub.repos[RUN].files.values()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["-i", "logs/ppo/Toy-Reach_1", "a/b/c"], "a/b/c"),
        (["-i", "logs/ppo/Toy-Reach_1", "me/run", "-orga", "x"], "-orga"),
        ([RUN], "-i"),
        (["-i", "logs/ppo/Nowhere_1", RUN], "logs/ppo/Nowhere_1"),
        (["-i", "logs/ppo/Toy-Reach_1", RUN, "--base", BASE], "--base"),
    ],
)
def test_mistakes_are_named(
    run: Path, hub: LoopbackHub, capsys: pytest.CaptureFixture[str], command: list[str], named: str
) -> None:
    assert guarded(push_to_hub.run, command) == 2
    assert named in capsys.readouterr().err
    assert hub.requests == []


def quoted(run: Path) -> Mapping[str, Any]:
    record = find_evaluation(RunFolder(run), weights_sha256(run / "best"), RunFolder(run).saved_steps()[-1])
    assert record is not None
    return record


def test_results_count_for_the_weights_they_are_of(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["--num-threads", "1", "--device", "cpu", "--eval-episodes"]
    # Training goes on while others are evaluated: the results are of those that were loaded.
    evaluated = measuring.play

    def replaced_meanwhile(*args: Any, **options: Any) -> Any:
        with (run / "best" / "model.safetensors").open("ab") as weights:
            weights.write(b"more")
        return evaluated(*args, **options)

    monkeypatch.setattr("zoo.agents.measuring.play", replaced_meanwhile)
    assert evaluate.run(["-i", str(run), *asked, "6"]) == 0
    assert "num_timesteps" in quoted(run)
