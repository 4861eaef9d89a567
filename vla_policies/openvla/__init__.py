"""OpenVLA: 7 action tokens, one after the other, behind two image towers and Llama-2."""
