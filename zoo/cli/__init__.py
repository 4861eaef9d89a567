"""From flags to checked requests, and errors to one line."""
