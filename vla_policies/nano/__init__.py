"""`nano`: a small vision-language-action model that trains and runs on a CPU."""
