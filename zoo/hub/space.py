"""A Space of the Hugging Face Hub that shows a published run on the page of `zoo.play`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from vla_gym import __version__
from vla_gym.errors import MissingDependency
from vla_gym.registry import find_benchmark
from vla_gym.system.extras import DISTRIBUTION, install_command
from vla_policies.checkpoint_io.hub import call
from zoo.config.run_config import benchmark_options
from zoo.hub.upload import commit_files, words_of
from zoo.runs.folder import RunFolder
from zoo.runs.lookup import policy_folder

_PACKAGES = ("libegl1", "libgl1", "libglib2.0-0", "libosmesa6", "libvulkan1", "mesa-vulkan-drivers")
"""Debian's libraries with which simulators render without a display, as `scripts/setup_system.sh` brings them."""


def space_files(run: RunFolder, repo: str) -> dict[str, bytes]:
    """Return the content of each file of the Space `repo`, which plays the run of the repository `repo`.

    Raises `MissingDependency` without Gradio, whose version the Space takes.
    """
    from huggingface_hub import SpaceCardData

    config, words = run.config(), words_of(policy_folder(str(run.path)))
    extra = find_benchmark(config.env, **benchmark_options(config.env_options)).extra
    extras = sorted({"play", *([extra] if extra else []), *(["words"] if words == "wordllama" else [])})
    card = SpaceCardData(
        title=repo.split("/")[-1],
        sdk="gradio",
        sdk_version=gradio_version(),
        python_version="3.11",
        app_file="app.py",
        models=[repo],
        tags=[DISTRIBUTION, "robotics", "reinforcement-learning"],
    )
    about = f"Type an instruction and watch [{repo}](https://huggingface.co/{repo}) on {config.env}, by vla-zoo."
    texts = {
        "app.py": f'from zoo.cli.main import main\n\nraise SystemExit(main(["play", "-i", "{repo}"]))\n',
        "requirements.txt": f"{DISTRIBUTION}[{','.join(extras)}]=={__version__}\n",
        "packages.txt": "\n".join(_PACKAGES) + "\n",
        "README.md": f"---\n{card.to_yaml()}\n---\n\n{about}\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def gradio_version() -> str:
    """Return the version of Gradio, which draws the page; raises `MissingDependency` where it is not installed."""
    try:
        return metadata.version("gradio")
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(f"the page needs gradio; install it: {install_command('play')}") from error


def publish_space(files: Mapping[str, bytes], repo: str, *, public: bool = False) -> str:
    """Send `space_files`; return the Space's address. Raises `BadValue` of one line whatever fails."""
    url, hidden = call(
        lambda: commit_files(repo, files, "The play page, by vla-zoo", public=public, space=True),
        f"the Space '{repo}' was not updated on the Hub",
    )
    return f"{url}{'  (give it a secret HF_TOKEN that may read the private run)' if hidden else ''}"
