"""Speed side by side with what people use today; `make bench` runs them."""
