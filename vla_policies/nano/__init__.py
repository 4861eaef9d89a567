"""`nano`: a small vision-language-action model of our own that trains and runs on a CPU."""
