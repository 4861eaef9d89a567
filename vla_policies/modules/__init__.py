"""Network parts and training aids that families share."""
