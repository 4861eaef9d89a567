"""The README.md of a shared run: what it is, how well it does and under which protocol, how to use it."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from vla_gym import __version__
from vla_policies.registry import FAMILIES
from zoo.config.run_config import RunConfig, to_plain
from zoo.config.settings import Options, Settings
from zoo.evaluation.results import with_split
from zoo.runs.evaluations import policy_line
from zoo.runs.folder import longer

_MOST_ROWS = 40
_SHOWN_SETTINGS = (
    *("algo", "env", "n_timesteps", "num_envs", "seed"),
    *("env_options", "policy_kwargs", "algo_kwargs"),
)


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    repo: str
    """`org/name`."""
    config: RunConfig
    step: int | None
    """Simulator steps the shared weights were trained for."""
    base: str | None
    """Hub id of what an adapter belongs to or training started from; None for fresh weights or a folder's."""
    adapter: bool
    """Whether it is a LoRA adapter alone."""
    family: str
    evaluation: Options | None
    """`zoo.evaluation.results.evaluation_record` of these weights, or the part of one that is known."""
    robustness: Options | None
    """`robustness.json` of these weights."""
    protocol: Options
    words: str
    """`words` of nano; "" for other families."""
    saved_step: int | None
    """Simulator steps of the checkpoint in the repository, from which training goes on; None without one."""


def model_card(facts: CardFacts) -> str:
    """The whole file: YAML front matter, then Markdown, in which names that files gave stay text (`inline`)."""
    robustness = [_robustness(facts)] if facts.robustness else []
    parts = [_headline(facts), _results(facts), *robustness, _usage(facts), _training(facts), _protocol(facts)]
    return f"---\n{front_matter(facts)}\n---\n\n" + "\n\n".join(parts) + "\n"


def front_matter(facts: CardFacts) -> str:
    """The card's metadata as the Hub reads it: YAML; success on the environment, and on its suites if several."""
    from huggingface_hub import EvalResult, ModelCardData

    config, evaluation, results = facts.config, facts.evaluation, None
    env = _line(config.env)
    more: Settings = {}
    if facts.base is not None:
        more["base_model_relation"] = "adapter" if facts.adapter else "finetune"
    if evaluation is not None:
        suites = evaluation.get("suites", ())
        more["model_name"] = facts.repo.split("/")[-1]
        results = [
            EvalResult(
                task_type="robotics",
                task_name="robotics",
                dataset_type=_line(name),
                dataset_name=_line(name),
                metric_type="success_rate",
                metric_name="success rate (at any step)",
                metric_value=round(rate["success"], 4),
                metric_args={
                    "successes": rate["successes"],
                    "episodes": rate["episodes"],
                    "wilson_95": [round(rate["low"], 4), round(rate["high"], 4)],
                },
            )
            for name, rate in [
                (env, evaluation["success"]),
                *((rate["name"], rate) for rate in suites if len(suites) > 1),
            ]
        ]
    return ModelCardData(
        library_name="peft" if facts.adapter else "vla-zoo",
        pipeline_tag="robotics",
        tags=["vla-zoo", env, config.algo, _line(facts.family), "reinforcement-learning", "robotics"],
        base_model=facts.base,
        eval_results=results,
        **more,
    ).to_yaml()


def _line(value: object) -> str:
    """Return `value` as one line without control characters: a line of dashes would end the front matter."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())


def inline(value: object) -> str:
    """Return `value` as text of one line of Markdown: no HTML, columns, links, code or emphasis."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(_line(value), quote=False))


def _code(value: object) -> str:
    return f"`{re.sub('[`|]', ' ', _line(value))}`"


def _headline(facts: CardFacts) -> str:
    config = facts.config
    kind = "LoRA adapter" if facts.adapter else "Policy"
    on = f" of {_code(facts.base)}" if facts.base is not None else ""
    unit = "updates" if config.algo == "sft" else "simulator steps"
    trained = f", {facts.step} {unit}" if facts.step is not None else ""
    return (
        f"# {facts.repo.split('/')[-1]}\n\n{kind}{on} ({inline(facts.family)}), trained by "
        f"{inline(config.algo.upper())} on {inline(config.env)}{trained}, with vla-zoo {__version__}."
    )


def _results(facts: CardFacts) -> str:
    if facts.evaluation is None:
        return "## Results\n\nThese weights have not been evaluated."
    record = facts.evaluation
    tasks: Sequence[Options] = record.get("tasks", ())
    suites = [rate for rate in record.get("suites", ()) if len(record["suites"]) > 1]
    lines = ["## Results", "", *_rows({**record["success"], "name": "all episodes"}, *suites, *tasks[:_MOST_ROWS])]
    if len(tasks) > _MOST_ROWS:
        lines.append(f"\n{len(tasks) - _MOST_ROWS} tasks more are in `results.json`.")
    if "summary" in record:
        line = with_split(record["summary"], record.get("protocol", {}).get("split"))
        lines += ["", f"Protocol: {inline(line)}. Details are in `protocol.json`."]
    if record.get("read_as"):
        lines += ["", f"The policy was {inline(policy_line(record['read_as']))}."]
    return "\n".join(lines)


def _robustness(facts: CardFacts) -> str:
    """Success on what LIBERO-PRO and LIBERO-Plus change, the unchanged environment first."""
    assert facts.robustness is not None
    return "\n".join(["## Robustness", "", *_rows(*facts.robustness["axes"])])


def _rows(*rates: Options) -> list[str]:
    return [
        "| | success | 95 % interval (Wilson) | solved |",
        "|---|---|---|---|",
        *(
            f"| {inline(rate['name'])} | {rate['success']:.1%} | {rate['low']:.1%} to {rate['high']:.1%} "
            f"| {rate['successes']} of {rate['episodes']} |"
            for rate in rates
        ),
    ]


def _usage(facts: CardFacts) -> str:
    repo, env = facts.repo, facts.config.env
    lines = [
        "## Use",
        "",
        "```python",
        "from vla_policies import VLAPolicy",
        "",
        f'policy = VLAPolicy.from_pretrained("{repo}")',
        "```",
        "",
        "```sh",
        f"vla-zoo evaluate -i {repo}          # success per task on {_line(env)}",
        f"vla-zoo record_video -i {repo}",
        f"vla-zoo load_from_hub {repo}        # as a run folder under logs/",
    ]
    if facts.saved_step is not None and facts.config.algo != "sft":
        more = longer(facts.config.n_timesteps, facts.saved_step)
        lines.append(f"vla-zoo train -i {repo} -n {more}   # train on")
    lines.append("```")
    if facts.words == "wordllama":
        lines += [
            "",
            "It reads words through the table of [WordLlama](https://github.com/dleemiller/WordLlama) (MIT), which is "
            "not part of this repository: `pip install wordllama`.",
        ]
    if facts.adapter:
        lines += [
            "",
            "The adapter is plain peft's: `PeftModel.from_pretrained` puts it on the base model's network. "
            "`value_head.safetensors` is the critic, which acting does not need.",
        ]
    return "\n".join(lines)


def _training(facts: CardFacts) -> str:
    plain = to_plain(facts.config)
    settings = yaml.safe_dump({name: plain[name] for name in _SHOWN_SETTINGS}, sort_keys=False)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", settings)), 0)
    launch = f", by {inline(facts.protocol['launch'])}" if facts.protocol.get("launch") else ""
    recipe = f"the recipe {_code(facts.config.entry)}{launch}"
    if facts.base == facts.config.policy.partition("@")[0]:
        recipe = f"{_code(facts.base)} with {recipe}"
    elif facts.config.policy not in FAMILIES:
        recipe = f"a trained policy, which is not part of this repository, with {recipe}"
    return f"## Training\n\nStarted from {recipe}.\n\n{fence}yaml\n{settings}{fence}"


def _protocol(facts: CardFacts) -> str:
    packages = facts.protocol.get("versions")
    packages = packages if isinstance(packages, Mapping) else {}
    listed = ", ".join(f"{inline(name)} {inline(version)}" for name, version in packages.items())
    return f"## Versions\n\n{listed or 'See protocol.json.'}"
