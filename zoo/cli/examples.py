"""Examples of every command, for `--help` and the command pages; a test parses them."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "doctor": (
        "vla-zoo doctor",
        "vla-zoo doctor --env MetaWorld/reach",
        "vla-zoo doctor --oracle --env LIBERO-Object --episodes 10",
    ),
    "train": (
        "vla-zoo train --env Toy-Reach",
        "vla-zoo train --algo grpo --env LIBERO-Goal -n 200000 -params learning_rate:1e-5 image_size:128",
        "vla-zoo train --algo qc --env MetaWorld/window-close -n 20000",
        "vla-zoo train -i logs/ppo/Toy-Reach_1 -n 300000",
    ),
    "collect": (
        "vla-zoo collect --env MetaWorld/window-close --expert -n 5 -o demos/window-close",
        "vla-zoo collect -i logs/ppo/MetaWorld-window-close_1 --keep-failures -n 100 -o rollouts",
    ),
    "sft": (
        "vla-zoo sft --env MetaWorld/window-close --dataset demos/window-close -n 50",
        "vla-zoo sft --env LIBERO-Goal --dataset demos/goal --policy smolvla --micro-batch-size 8",
        "vla-zoo sft -i logs/sft/MetaWorld-window-close_1",
    ),
    "envs": ("vla-zoo envs", "vla-zoo envs libero-goal"),
    "runs": ("vla-zoo runs", "vla-zoo runs -f /shared/logs"),
    "published": (
        "vla-zoo published",
        "vla-zoo published libero-130-grpo",
        "vla-zoo published --submit results_libero-130-grpo.json",
    ),
    "plan": (
        "vla-zoo plan --env LIBERO-Spatial --policy openvla-oft --gpu-memory 24",
        "vla-zoo plan --algo grpo --env LIBERO-Spatial --policy openvla-oft --ranks 8 --fsdp --gpu h100",
    ),
    "evaluate": (
        "vla-zoo evaluate -i logs/ppo/Toy-Reach_1 --video",
        "vla-zoo evaluate --env LIBERO-Goal --policy agents/sft/LIBERO-Goal --episodes 50",
        "vla-zoo evaluate --published libero-oft-base --env LIBERO-Spatial",
    ),
    "compare": (
        "vla-zoo compare logs/sft/MetaWorld-window-close_1 logs/ppo/MetaWorld-window-close_1",
        "vla-zoo compare --before sft.json --after ppo.json",
    ),
    "enjoy": ("vla-zoo enjoy -i agents/sft/LIBERO-Goal", "vla-zoo enjoy --env Toy-Reach -o episodes.mp4"),
    "play": ("vla-zoo play -i agents/sft/LIBERO-Goal", "vla-zoo play -i logs/ppo/Toy-Reach_1 --port 7861"),
    "record_video": ("vla-zoo record_video -i logs/ppo/Toy-Reach_1 --episodes 4",),
    "serve": ("vla-zoo serve -i agents/sft/LIBERO-Goal --port 8000",),
    "optimize": (
        "vla-zoo optimize --algo grpo --env Toy-Reach -n 40000 --n-trials 20",
        "vla-zoo optimize --env Toy-Reach -n 20000 --space space.yml -- --num-envs 32",
    ),
    "plot": ("vla-zoo plot -e Toy-Reach -a ppo grpo", "vla-zoo plot logs/ppo/Toy-Reach_1 logs/ppo/Toy-Reach_2"),
    "report": ("vla-zoo report -i logs/ppo/Toy-Reach_1",),
    "completion": ("vla-zoo completion bash",),
    "push_to_hub": ("vla-zoo push_to_hub -i logs/ppo/Toy-Reach_1 me/toy-reach --public",),
    "load_from_hub": ("vla-zoo load_from_hub me/toy-reach",),
}
