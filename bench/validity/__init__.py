"""Was it right: the checks that a completed row must pass, each of which leaves findings. Pure."""
