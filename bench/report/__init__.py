"""One self-contained HTML page per run."""
