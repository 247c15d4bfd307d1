"""``python -m bench`` is ``zerostage``."""

from bench.cli import main

main()
