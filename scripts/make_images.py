"""The images of docs/images: `python scripts/make_images.py frames`, `video`, `gains`, or `curves RUNS...`.

`frames` are what the environments show at the first start state of a task, `video` is agents of `agents/` drawn at each
simulator step, `gains` their success before and after, `curves` the deterministic evaluations of runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import yaml
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import vla_gym  # noqa: E402 - found beside scripts/

FOLDER = ROOT / "docs" / "images"
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
INK, PAPER, GOOD, BAD = (32, 40, 48), (255, 255, 255), (30, 130, 76), (176, 58, 46)

SHEETS: dict[str, tuple[str, ...]] = {
    "toy-reach": ("Toy-Reach",) * 3,
    "libero": ("LIBERO-Spatial/0", "LIBERO-Object/3", "LIBERO-Goal/0", "LIBERO-Long/2", "LIBERO-90/10", "LIBERO-90/60"),
    "metaworld": tuple(
        f"MetaWorld/{task}"
        for task in ("window-close", "drawer-open", "pick-place", "peg-insert-side", "basketball", "hammer")
    ),
    "maniskill": tuple(
        f"ManiSkill/{task}"
        for task in ("PickCube", "PushCube", "StackCube", "PlaceSphere", "LiftPegUpright", "PegInsertionSide")
    ),
    "plate25": ("ManiSkill-Plate25",) * 3,
}
"""Name of a sheet -> the environments on it; one named several times shows that many of its tasks."""
VIDEO = (
    ("MetaWorld/window-close", "sft", "5 demonstrations"),
    ("MetaWorld/window-close", "ppo", "+ 4.5 min of PPO, one core"),
    ("LIBERO-Object", "ppo", "LIBERO-Object, PPO"),
)
"""Environment, stage in `agents/`, title of each panel."""


def text_font(size: int) -> Any:
    """Return matplotlib's own font, so that images are the same everywhere."""
    return ImageFont.truetype(str(FONT), size)


def words_below(image: np.ndarray, text: str, *, height: int = 34, ink: tuple[int, int, int] = INK) -> Image.Image:
    """Return u8[H, W, 3] with a strip below it that holds a text of at most two lines."""
    width = image.shape[1]
    tile = Image.new("RGB", (width, image.shape[0] + height), PAPER)
    tile.paste(Image.fromarray(image))
    draw, font = ImageDraw.Draw(tile), text_font(12)
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font=font) <= width - 8:
            lines[-1] = longer
        else:
            lines.append(word)
    draw.multiline_text((4, image.shape[0] + 2), "\n".join(lines[:2]), fill=ink, font=font, spacing=2)
    return tile


def write_frames(size: int = 240) -> Iterator[Path]:
    """Write one sheet per benchmark: the image and the instruction of each task."""
    for name, env_ids in SHEETS.items():
        tiles = []
        for place, env_id in enumerate(env_ids):
            skipped = sum(other == env_id for other in env_ids[:place])
            envs = vla_gym.make_vec(env_id, 1, image_size=size, num_workers=0)
            obs, _ = envs.reset(options={"task_id": np.array([skipped]), "trial_id": np.array([0])})
            tiles.append(words_below(obs["image"][0], obs["instruction"][0]))
            envs.close()
        yield write_sheet(FOLDER / f"{name}.webp", tiles)


def write_sheet(path: Path, tiles: Sequence[Image.Image], *, columns: int = 3, gap: int = 8) -> Path:
    """Write equal tiles as one image."""
    width, height = tiles[0].size
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), PAPER)
    for place, tile in enumerate(tiles):
        sheet.paste(tile, ((place % columns) * (width + gap), (place // columns) * (height + gap)))
    sheet.save(path, quality=82, method=6)
    return path


def agent_of(env_id: str, stage: str) -> tuple[Path, dict[str, Any]]:
    """Return an agent's folder and the environment's options it was trained with, rewards left out."""
    folder = ROOT / "agents" / stage / env_id.replace("/", "-")
    config = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))
    options = {name: value for name, value in config["env_options"].items() if not name.startswith("reward")}
    return folder, {"autoreset_mode": "disabled", **options}


def play(env_id: str, stage: str, *, task_id: int, trial_id: int) -> tuple[list[np.ndarray], bool]:
    """Return the actions [A] of an agent's episode, one a simulator step, and whether it succeeded."""
    from vla_policies import VLAPolicy

    folder, options = agent_of(env_id, stage)
    envs = vla_gym.make_vec(env_id, 1, num_workers=0, **options)
    view = envs.as_sb3()
    policy = VLAPolicy.from_pretrained(
        str(folder), observation_space=view.observation_space, action_space=view.action_space
    )
    policy.set_training_mode(False)
    obs, _ = envs.reset(options={"task_id": np.array([task_id]), "trial_id": np.array([trial_id])})
    actions: list[np.ndarray] = []
    ended = solved = False
    while not ended:
        chunk = policy.act(obs, deterministic=True).action_BKA
        chunk = np.asarray(chunk.cpu())
        obs, _, terminated, truncated, infos = envs.step(chunk)
        actions += list(chunk[0, : int(infos["executed"][0])])
        solved = solved or bool(infos["success"][0])
        ended = bool(terminated[0] or truncated[0])
    envs.close()
    return actions, solved


def redraw(
    env_id: str, stage: str, actions: Sequence[np.ndarray], *, task_id: int, trial_id: int, size: int
) -> tuple[list[np.ndarray], str]:
    """Return an image for every simulator step of recorded actions, and the instruction."""
    _, options = agent_of(env_id, stage)
    options |= {"chunk": 1, "image_size": size}
    options.pop("render_quality", None)
    envs = vla_gym.make_vec(env_id, 1, num_workers=0, **options)
    obs, _ = envs.reset(options={"task_id": np.array([task_id]), "trial_id": np.array([trial_id])})
    images = [obs["image"][0]]
    for action in actions:
        obs, *_ = envs.step(action[None, None].astype(np.float32))
        images.append(obs["image"][0])
    envs.close()
    return images, obs["instruction"][0]


def write_video(size: int = 300, *, every: int = 2, hold: int = 14) -> Iterator[Path]:
    """Write the agents of `VIDEO` side by side, each on the first start state that tells stages apart."""
    panels = []
    starts = first_start_states()
    for env_id, stage, title in VIDEO:
        task_id, trial_id, actions, solved = starts[env_id, stage]
        images, instruction = redraw(env_id, stage, actions, task_id=task_id, trial_id=trial_id, size=size)
        panels.append((images, title, instruction, solved))
        print(env_id, stage, (task_id, trial_id), "success" if solved else "no success", len(images))
    steps = max(len(images) for images, *_ in panels)
    frames = [video_frame(panels, min(step, steps - 1)) for step in (*range(0, steps, every), steps - 1)]
    path = FOLDER / "agents.webp"
    times = [80] * (len(frames) - 1) + [80 * hold]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=62, method=6)
    yield path


def first_start_states() -> dict[tuple[str, str], tuple[int, int, list[np.ndarray], bool]]:
    """Return (environment, stage) -> task, trial, actions, success of the first start state that the video shows.

    Where an environment has two stages it is the first that the earlier one fails and the later one solves, else the
    first that is solved.
    """
    found = {}
    stages: dict[str, list[str]] = {}
    for env_id, stage, _ in VIDEO:
        stages.setdefault(env_id, []).append(stage)
    for env_id, names in stages.items():
        for trial_id in range(50):
            played = {stage: play(env_id, stage, task_id=0, trial_id=trial_id) for stage in names}
            if [solved for _, solved in played.values()] == [False, True][-len(names) :]:
                found |= {(env_id, stage): (0, trial_id, *result) for stage, result in played.items()}
                break
    return found


def video_frame(panels: Sequence[tuple[Sequence[np.ndarray], str, str, bool]], step: int) -> Image.Image:
    """Return one frame: the panels beside each other, below each its title and instruction, or how it ended."""
    tiles = []
    for images, title, instruction, solved in panels:
        over = step >= len(images) - 1
        text = (f"{title}: success" if solved else f"{title}: no success") if over else f"{title}: {instruction}"
        ink = INK if not over else GOOD if solved else BAD
        tiles.append(words_below(images[min(step, len(images) - 1)], text, ink=ink))
    gap, (width, height) = 8, tiles[0].size
    frame = Image.new("RGB", (len(tiles) * (width + gap) - gap, height), PAPER)
    for place, tile in enumerate(tiles):
        frame.paste(tile, (place * (width + gap), 0))
    return frame


def success_of(folder: Path) -> tuple[int, int] | None:
    """Return successes and episodes of an agent, all its evaluations together; None without any."""
    file = folder / "results.json"
    if not file.is_file():
        return None
    entries = [entry["success"] for entry in json.loads(file.read_text(encoding="utf-8")).values()]
    return sum(entry["successes"] for entry in entries), sum(entry["episodes"] for entry in entries)


def write_gains() -> Iterator[Path]:
    """Write success after demonstrations, PPO and GRPO with Wilson 95 % intervals, for agents that have all or two."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    from zoo.evaluation.statistics import wilson_interval

    stages = {"sft": "demonstrations", "ppo": "then PPO", "grpo": "then GRPO"}
    trained = {path.name for stage in ("ppo", "grpo") for path in (ROOT / "agents" / stage).iterdir() if path.is_dir()}
    names = sorted(trained, key=lambda name: -_share(success_of(ROOT / "agents" / "ppo" / name)))
    figure, axes = plt.subplots(figsize=(7, 4.2), dpi=130)
    for place, (stage, label) in enumerate(stages.items()):
        for row, name in enumerate(names):
            found = success_of(ROOT / "agents" / stage / name)
            if found is None:
                continue
            low, high = wilson_interval(*found)
            share, middle = _share(found), row + (place - 1) * 0.26
            spread = [[100 * (share - low)], [100 * (high - share)]]
            axes.barh(middle, 100 * share, height=0.24, color=f"C{(7, 0, 1)[place]}", label=label if not row else None)
            axes.errorbar(100 * share, middle, xerr=spread, color="black", linewidth=0.8, capsize=1.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="success on the same start states, %, Wilson 95 % intervals", xlim=(0, 100))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
    axes.legend(handles.values(), handles.keys(), loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, frameon=False)
    figure.tight_layout()
    path = FOLDER / "agents-gains.webp"
    figure.savefig(path, pil_kwargs={"quality": 90})
    yield path


def _share(found: tuple[int, int] | None) -> float:
    return found[0] / found[1] if found else 0.0


def evaluations(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps [E] and success [E] of a run's deterministic evaluations, its last one included."""
    with np.load(run / "evaluations.npz") as data:
        return np.asarray(data["timesteps"]), np.asarray(data["successes"], dtype=float).mean(axis=1)


def write_curves(runs: Sequence[Path]) -> Iterator[Path]:
    """Write success against steps: mean over the seeds and a 95 % interval of the mean (Student's t)."""
    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from scipy.stats import t as student

    by_algo: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for run in runs:
        config = yaml.safe_load((run / "config.yml").read_text(encoding="utf-8"))
        by_algo.setdefault(config["algo"].upper(), []).append(evaluations(run))
    figure, axes = plt.subplots(figsize=(7, 3.4), dpi=130)
    for algo, curves in sorted(by_algo.items(), reverse=True):
        last = min(steps[-1] for steps, _ in curves)
        grid = np.linspace(max(steps[0] for steps, _ in curves), last, 60)
        values = np.stack([np.interp(grid, steps, success) for steps, success in curves])
        mean = values.mean(axis=0)
        half = student.ppf(0.975, len(curves) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(curves))
        (line,) = axes.plot(grid, 100 * mean, label=f"{algo}, {len(curves)} seeds")
        low, high = np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)
        axes.fill_between(grid, 100 * low, 100 * high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="simulator steps", ylabel="success on 150 start states, %", ylim=(0, 101), xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    axes.set_title("Toy-Reach, deterministic evaluations", fontsize=11)
    figure.tight_layout()
    path = FOLDER / "toy-reach-curves.webp"
    figure.savefig(path, pil_kwargs={"quality": 90})
    yield path


def main(argv: Sequence[str] | None = None) -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", choices=("frames", "video", "gains", "curves"))
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, for curves")
    args = parser.parse_args(argv)
    FOLDER.mkdir(exist_ok=True)
    writers = {"frames": write_frames, "video": write_video, "gains": write_gains}
    made = write_curves(args.runs) if args.images == "curves" else writers[args.images]()
    for path in made:
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
