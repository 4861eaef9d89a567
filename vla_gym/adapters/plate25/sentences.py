"""What the policy is told. 0 is the trained wording; 1-16 are the Instruct run's; 17-20 are published but unused."""

from __future__ import annotations

TEMPLATES = (
    "put {object} on {plate}",
    "Place the {object} on the {plate}",
    "set {object} on {plate}",
    "move the {object} to the {plate}",
    "Take the {object} and put it on the {plate}",
    "pick up {object} and set it down on {plate}",
    "please put the {object} on the {plate}",
    "Put {object} onto {plate}.",
    "place the {object} onto the {plate} surface",
    "Make sure {object} is on {plate}.",
    "on the {plate}, put the {object}",
    "put the {object} where the {plate} is",
    "Move the {object} from the table to the {plate}",
    "Move {object} so it\u2019s on {plate}.",
    "Can you put {object} on {plate}?",
    "{object} on the {plate}, please.",
    "the {object} should be placed on the {plate}.",
    "Lay the {object} down on the {plate}.",
    "could you place {object} over {plate}",
    "position the {object} atop the {plate}",
    "Arrange for the {object} to be resting on {plate}.",
)
"""By template id. The apostrophe of 13 is the published curly one (U+2019)."""


def sentence(template: int, thing: str, plate: str) -> str:
    """The instruction for an object and a plate by name."""
    return TEMPLATES[template].format(object=thing, plate=plate)
