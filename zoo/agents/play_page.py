"""The page of `zoo.play`: a `PlaySession` behind Gradio's buttons, each frame pushed to the browser as it is made."""

from __future__ import annotations

import base64
import html
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from vla_gym.errors import VLAZooError
from vla_gym.observation import MAX_INSTRUCTION_BYTES
from zoo.agents.measuring import keep_former
from zoo.agents.play_session import Decision, PlaySession, PlayState

OnThread = Callable[[Callable[[], Any]], Any]
"""Calls a function on the simulator's thread and returns its result."""
_COLOURS = np.array([[38, 98, 178], [245, 245, 245], [214, 104, 20]])
"""Of -1, 0 and 1 in the image of a chunk."""
_CAMERAS = {"image": "main camera", "wrist_image": "wrist camera"}
_CSS = """
.cameras { display: flex; gap: 12px; flex-wrap: wrap; }
.cameras figure { margin: 0; flex: 1 1 130px; max-width: 400px; }
.cameras img { width: 100%; border-radius: 8px; display: block; }
figcaption, dt, .chunk span { font-size: 13px; opacity: 0.75; }
.outcome { margin: 12px 0 4px; font-size: 16px; }
.outcome b { color: white; border-radius: 6px; padding: 2px 10px; margin-right: 8px; background: #6b7280; }
.outcome b.solved { background: #15803d; }
.outcome b.failed { background: #b91c1c; }
dl { display: flex; flex-wrap: wrap; gap: 4px 28px; margin: 10px 0; }
dt, dd { margin: 0; }
dd { font-size: 18px; font-variant-numeric: tabular-nums; }
.chunk { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: end; }
.chunk img { image-rendering: pixelated; border-radius: 3px; display: block; }
"""


class Player:
    """Does what the buttons say; returns what the page's components show."""

    def __init__(self, session: PlaySession, on_thread: OnThread, video: Path) -> None:
        self.session = session
        self._on_thread, self._video = on_thread, video
        self._turn = 0
        """Number of the latest press of a button that moves the robot: an earlier one moves it no more."""

    def reset(self, task_id: int, trial_id: int, seed: int, sample: bool) -> tuple[str, str, gr.Slider, int]:
        """Begin an episode; return view, instruction, start state and seed."""
        most = self.session.tasks[task_id].num_trials - 1
        trial_id, seed = min(int(trial_id), most), int(seed)
        self.pause()
        self.session.sample = sample
        with _told():
            state = self._on_thread(lambda: self.session.reset(task_id, trial_id, seed))
        return view(state), state.instruction, start_slider(trial_id, most), seed

    def new_seed(self, task_id: int, seed: int, sample: bool) -> tuple[str, str, gr.Slider, int]:
        """Begin an episode of the next seed, which draws the start state."""
        seed = int(seed) + 1
        trial_id = np.random.default_rng(seed).integers(self.session.tasks[task_id].num_trials)
        return self.reset(task_id, int(trial_id), seed, sample)

    def pause(self) -> None:
        """Let the robot stand after its present step."""
        self._turn += 1

    def instruct(self, text: str) -> str:
        with _told():
            return view(self._on_thread(lambda: self.session.instruct(text)))

    def play(self, text: str, *, one_decision: bool = False) -> Iterator[Any]:
        """Yield the view after each simulator step, no faster than the robot's own time; an episode that is over begins
        again."""
        yield from self._moves(text, one_decision)
        # Gradio shows what was yielded last once more, maybe over the next episode's view.
        yield gr.skip()

    def _moves(self, text: str, one_decision: bool) -> Iterator[str]:
        self.pause()
        turn, session, now = self._turn, self.session, self.session.state
        with _told():
            if now.over:
                self._on_thread(lambda: session.reset(now.start.task_id, now.start.trial_id, now.seed))
            state = self._on_thread(lambda: session.instruct(text))
            while not state.over:
                begin = time.monotonic()
                state = self._on_thread(lambda: session.step() if turn == self._turn else session.state)
                if turn != self._turn:
                    return
                yield view(state)
                if one_decision and state.between_decisions:
                    return
                time.sleep(max(0.0, begin + 1.0 / session.control_hz - time.monotonic()))

    def save_video(self) -> gr.Video:
        """Write the episode so far; a former file of the name is kept under another."""
        with _told():
            keep_former(self._video)
            path = self._on_thread(lambda: self.session.save_video(self._video))
        return gr.Video(str(path), visible=True, label=str(path))


def build_page(player: Player, title: str) -> gr.Blocks:
    """Return the page; all its visitors move one robot."""
    session, state = player.session, player.session.state
    names = [(f"{number}: {task.instruction}", number) for number, task in enumerate(session.tasks)]
    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"## {html.escape(title)}")
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                shown = gr.HTML(view(state), css_template=_CSS, elem_id="robot")
            with gr.Column(scale=2, min_width=280):
                words = gr.Textbox(
                    state.instruction,
                    label="Instruction",
                    info="Enter plays it: the policy hears you at its next decision",
                    max_length=MAX_INSTRUCTION_BYTES,
                    elem_id="instruction",
                )
                with gr.Row():
                    play, pause, step = _buttons("Play", "Pause", "Step")
                with gr.Row():
                    again, other, save = _buttons("Reset", "New seed", "Save mp4")
                task = gr.Dropdown(names, value=0, label="Task", info="Its goal decides what counts as success")
                start = start_slider(0, session.tasks[0].num_trials - 1)
                with gr.Row():
                    seed = gr.Number(state.seed, label="Seed", precision=0, minimum=0, min_width=100)
                    sample = gr.Checkbox(session.sample, label="Sample actions", min_width=140)
                video = gr.Video(visible=False, height=220)
        quiet: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None}
        episode = [shown, words, start, seed]
        gr.on([play.click, words.submit], player.play, words, shown, trigger_mode="multiple", **quiet)
        step.click(lambda text: (yield from player.play(text, one_decision=True)), words, shown, **quiet)
        words.blur(player.instruct, words, shown, **quiet)
        pause.click(player.pause, **quiet)
        changes = [task.input, start.release, seed.submit, sample.input, again.click]
        # Another task's scene may take seconds to load.
        seen = {**quiet, "show_progress": "minimal", "show_progress_on": task}
        gr.on(changes, player.reset, [task, start, seed, sample], episode, **seen)
        other.click(player.new_seed, [task, seed, sample], episode, **seen)
        save.click(player.save_video, outputs=video)
        page.load(lambda: view(session.state), outputs=shown, **quiet)
    return page


def start_slider(trial_id: int, most: int) -> gr.Slider:
    """The choice among start states 0 .. `most`."""
    return gr.Slider(0, max(most, 1), trial_id, step=1, label="Start state", interactive=most > 0)


def view(state: PlayState) -> str:
    """Return the cameras' images, the outcome, the numbers and the present decision as HTML."""
    word = "solved" if state.success else "failed" if state.over else "under way"
    now = state.decision
    facts = {
        "step": f"{state.steps} of {state.horizon}",
        "decision": str(state.decisions),
        "decisions/s": f"{state.decisions_per_second:.1f}",
    }
    if now and now.entropy is not None:
        facts["entropy"] = f"{now.entropy:.2f} nats"
    images = {
        _CAMERAS.get(name, name): _img(image, "JPEG", quality=95, subsampling=0) for name, image in state.images.items()
    }
    cameras = "".join(f"<figure>{image}<figcaption>{name}</figcaption></figure>" for name, image in images.items())
    return (
        f'<div data-step="{state.steps}" data-outcome="{word}"><div class="cameras">{cameras}</div>'
        f'<p class="outcome"><b class="{word.split()[0]}">{word}</b>Task: {html.escape(state.goal)}</p>'
        f'<p class="told">Told: {html.escape(state.instruction)}</p>'
        f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in facts.items())}</dl>"
        f"{_chunk(now) if now else ''}</div>"
    )


def _buttons(*labels: str) -> list[gr.Button]:
    return [
        gr.Button(
            label,
            variant="primary" if label == "Play" else "secondary",
            min_width=60,
            elem_id=label.lower().replace(" ", "-"),
        )
        for label in labels
    ]


def _chunk(now: Decision) -> str:
    """The actions of the present chunk over a bar of those that are executed; before it how it was denoised."""
    num, dims = now.action_KA.shape
    size = max(2, min(12, 240 // num))
    bar = np.full((1, num, 3), 225, dtype=np.uint8)
    bar[:, : now.executed] = 60
    steps = [] if now.chain_JKA is None else list(now.chain_JKA)
    images = [*map(_colours, steps), np.concatenate([_colours(now.action_KA), bar])]
    maps = "".join(_img(image, "PNG", f'width="{num * size}" height="{len(image) * size}"') for image in images)
    words = f"{num} actions of {dims} dims, -1 blue, 1 orange; dark below: executed"
    if steps:
        words = f"{len(steps) - 1} denoising steps from noise to a chunk: {words}"
    return f'<div class="chunk">{maps}<span>{words}</span></div>'


def _colours(values_KA: np.ndarray) -> np.ndarray:
    """Return a pixel for each number, dims downwards: uint8 `[A, K, 3]`."""
    places = np.clip(values_KA.T, -1.0, 1.0)
    pixels = [np.interp(places, (-1.0, 0.0, 1.0), _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(pixels, axis=-1).astype(np.uint8)


def _img(image: np.ndarray, kind: str, shape: str = "", **options: int) -> str:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    data = base64.b64encode(file.getvalue()).decode()
    # Decoded before it is shown: the page would flicker.
    return f'<img decoding="sync" {shape} src="data:image/{kind.lower()};base64,{data}">'


@contextmanager
def _told() -> Iterator[None]:
    """Show an error that users meet on the page."""
    try:
        yield
    except VLAZooError as error:
        raise gr.Error(str(error)) from error
