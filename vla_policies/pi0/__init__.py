"""pi0 and pi0.5: PaliGemma and an action expert that denoises chunks of actions."""
