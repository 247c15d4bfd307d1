"""What the seed article claims, each claim held against records."""
