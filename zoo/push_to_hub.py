"""`vla-zoo push_to_hub -i logs/ppo/LIBERO-Spatial_1 me/my-policy`: a run as a Hub repository."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.hub import call
from zoo.cli.arguments import OneLineParser
from zoo.cli.main import guarded
from zoo.files import quoted
from zoo.hub.upload import adapter_base, check_repo, default_name, publish, publish_space, space_files
from zoo.runs.lookup import find_run, policy_folder


def parser() -> OneLineParser:
    """The flags of `vla-zoo push_to_hub`."""
    p = OneLineParser("vla-zoo push_to_hub", "Publish a run on the Hugging Face Hub: policy, card, video, records.")
    p.add_argument("repo", nargs="?", metavar="REPO", help="org/name (default: <your name>/<algo>-<env>-<policy>)")
    p.add_argument("-i", "--run", metavar="RUN", help="run folder")
    p.add_argument("-orga", "--organization", metavar="ORG", help="instead of REPO: whose repository")
    p.add_argument("-name", "--repo-name", metavar="NAME", help="instead of REPO: its name")
    p.add_argument("--public", action="store_true", help="everybody may see it (default: private)")
    p.add_argument("--base", metavar="HUB_ID", help="name this as the adapter's base, not the folder it came from")
    p.add_argument("--space", action="store_true", help="and the Space REPO, where visitors play it, see vla-zoo play")
    p.add_argument("--weights-only", action="store_true", help="leave out what training would go on from")
    return p


def run(argv: Sequence[str]) -> int:
    """The command; errors are raised, see `zoo.cli.main.guarded`."""
    args = parser().parse(argv)
    if args.run is None:
        raise BadValue("say which run to publish: -i logs/ppo/Toy-Reach_1")
    if args.repo is not None and (args.organization or args.repo_name):
        raise BadValue("give REPO, or -orga and -name, not both")
    found = find_run(args.run)
    named, sent = policy_folder(args.run), policy_folder(str(found.path))
    if named.resolve() != sent.resolve():
        raise BadValue(f"'{args.run}' is not what is sent; that is '{sent}': say -i {quoted(found.path)}")
    repo = args.repo or f"{args.organization or _own_name()}/{args.repo_name or default_name(found)}"
    check_repo(repo)
    base = adapter_base(sent)
    if args.base is not None and base is None:
        raise BadValue(f"--base names an adapter's base, and the policy of '{args.run}' is whole; leave --base out")
    if args.base is None and base is not None and Path(base).is_dir():
        print(
            f"warning: the adapter belongs to '{base}', a folder that others do not have; --base HUB_ID names "
            "where they find it",
            file=sys.stderr,
        )
    space = space_files(found, repo) if args.space else None
    sent_to = publish(found, repo, public=args.public, base=args.base, with_checkpoint=not args.weights_only)
    print(f"pushed to  {sent_to}")
    if space:
        print(f"play it at {publish_space(space, repo, public=args.public)}")
    return 0


def _own_name() -> str:
    from huggingface_hub import HfApi

    name = call(lambda: HfApi().whoami()["name"], "cannot ask the Hub who you are; give REPO as org/name, or")
    return str(name)


if __name__ == "__main__":
    raise SystemExit(guarded(run))
