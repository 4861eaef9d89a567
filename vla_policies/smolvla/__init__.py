"""SmolVLA: a cut SmolVLM2 and an action expert that denoises chunks of actions, small enough for one GPU."""
