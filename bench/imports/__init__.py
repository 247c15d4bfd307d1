"""Other people's result files: read as they are, kept apart from measured rows. See docs/imports.md."""
