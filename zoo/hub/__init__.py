"""A run on the Hugging Face Hub, and back."""
