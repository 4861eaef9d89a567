"""`vla-zoo play -i agents/sft/LIBERO-Goal`: talk to a robot in the browser and watch it, live."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from vla_gym.errors import BadValue
from zoo.cli.agent import plan_rollout
from zoo.cli.arguments import OneLineParser, value_of
from zoo.cli.main import guarded
from zoo.cli.run_choice import chosen_run
from zoo.cli.shared_flags import add_policy_arguments, add_run_arguments
from zoo.config.settings import Range
from zoo.hub.upload import gradio_version


def parser() -> OneLineParser:
    """The flags of `vla-zoo play`."""
    p = OneLineParser("vla-zoo play", "Type an instruction and watch the robot live, on a page of this machine.")
    add_policy_arguments(p, default_split="with -i test, where that has start states of its own, else as trained")
    add_run_arguments(p)
    p.add_argument(
        "--port",
        type=value_of(Annotated[int, Range(low=1, high=65_535)]),
        metavar="N",
        help="port of the page (default: the first free one from 7860)",
    )
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`. Ends with Ctrl-C."""
    args = parser().parse(argv)
    gradio_version()
    args.run = chosen_run(args)
    plan = plan_rollout(args, episodes=None, unplayed=True)
    title = f"{plan.policy.name} on {plan.env}"
    print(f"opening {title}", flush=True)
    # Loads gradio and torch, which flags do without.
    from zoo.agents.play_page import Player, build_page
    from zoo.agents.play_session import PlaySession

    # A simulator's GL context belongs to the thread that made it.
    with ThreadPoolExecutor(1, "simulator") as thread:
        session = thread.submit(PlaySession.open, plan).result()
        try:
            video = plan.video_file("play", elsewhere="play")
            page = build_page(Player(session, lambda call: thread.submit(call).result(), video), title)
            _, address, _ = page.launch(
                server_port=args.port,
                share=False,
                quiet=True,
                show_error=True,
                prevent_thread_lock=True,
                footer_links=[],
                ssr_mode=False,
                allowed_paths=[str(video.absolute())],
            )
            print(f"play at {address}  (Ctrl-C ends it)", flush=True)
            page.block_thread()
        except OSError as error:
            raise BadValue(f"port {args.port or '7860 to 7959'} is taken here; choose another --port") from error
        finally:
            thread.submit(session.close).result()
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(run))
