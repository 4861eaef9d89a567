from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.zoo.stand_ins import toy_config
from zoo.hub.model_card import CardFacts, front_matter, model_card


def rate(name: str) -> dict[str, Any]:
    return {"name": name, "success": 1 / 3, "successes": 1, "episodes": 3, "low": 0.06149, "high": 0.9}


FACTS = CardFacts(
    repo="me/run",
    config=toy_config(),
    step=3,
    base=None,
    adapter=False,
    family="nano",
    evaluation=None,
    robustness=None,
    protocol={"versions": {"torch": "2.0"}},
    words="hashed",
    saved_step=None,
)


def test_weights_that_were_not_evaluated_claim_nothing() -> None:
    assert yaml.safe_load(front_matter(FACTS)) == {
        "library_name": "vla-zoo",
        "pipeline_tag": "robotics",
        "tags": ["vla-zoo", "Toy-Reach", "ppo", "nano", "reinforcement-learning", "robotics"],
    }
    assert "These weights have not been evaluated." in model_card(FACTS)
    assert "torch 2.0" in model_card(FACTS)


@pytest.mark.parametrize(("suites", "names"), [([], ["Toy-Reach"]), (["a", "b"], ["Toy-Reach", "a", "b"])])
def test_success_has_its_counts_and_its_interval(suites: list[str], names: list[str]) -> None:
    evaluation = {"success": rate("all"), "suites": [rate(name) for name in suites]}
    facts = replace(FACTS, base="org/base", adapter=True, evaluation=evaluation)
    matter = yaml.safe_load(front_matter(facts))
    assert (matter["base_model"], matter["base_model_relation"]) == ("org/base", "adapter")
    (index,) = matter["model-index"]
    assert index["name"] == "run"
    assert [result["dataset"]["name"] for result in index["results"]] == names
    (metric,) = index["results"][0]["metrics"]
    assert (metric["type"], metric["value"]) == ("success_rate", 0.3333)
    assert metric["args"] == {"successes": 1, "episodes": 3, "wilson_95": [0.0615, 0.9]}
    assert "| all episodes | 33.3% | 6.1% to 90.0% | 1 of 3 |" in model_card(facts)


def test_borrowed_words_are_named_with_their_licence() -> None:
    named = "[WordLlama](https://github.com/dleemiller/WordLlama) (MIT)"
    assert named in model_card(replace(FACTS, words="wordllama"))
    assert named not in model_card(FACTS)


def test_names_from_files_stay_text() -> None:
    # a record of a run that came from elsewhere, shared once more
    hostile = "<script>x</script>\n---\n## Fake\n| a | b |\n[click](http://x) `c`"
    config = replace(FACTS.config, entry=hostile, env_options={"x": "```\n<img src=x>"})
    evaluation = {"success": rate("all"), "tasks": [rate(hostile)], "summary": hostile}
    protocol = {"versions": {hostile: hostile}, "launch": hostile}
    text = model_card(replace(FACTS, config=config, family=hostile, evaluation=evaluation, protocol=protocol))
    body, settings = text.partition("\n---\n")[2].split("## Training")
    assert "<script>" not in body
    assert "## Fake" not in [line.strip() for line in text.splitlines()]
    assert "[click](" not in body
    assert "````yaml\n" in settings
    assert ", by &lt;script&gt;" in settings


def test_a_policy_that_training_began_with_is_not_left_out() -> None:
    text = model_card(replace(FACTS, config=replace(FACTS.config, policy="logs/sft/Toy-Reach_1/best")))
    assert "Started from a trained policy, which is not part of this repository, with the recipe `" in text
    text = model_card(replace(FACTS, config=replace(FACTS.config, policy="org/base"), base="org/base"))
    assert "Started from `org/base` with the recipe `" in text


def test_training_on_goes_past_the_checkpoint() -> None:
    # The best policy is of step 3 of a run that went on to step 300.
    text = model_card(replace(FACTS, saved_step=300))
    assert "vla-zoo train -i me/run -n 600   # train on" in text
