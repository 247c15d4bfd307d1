"""``python -m bench.claims > docs/claims.md`` writes the verdicts on the committed rows."""

from bench.claims.document import written

if __name__ == "__main__":
    print(written(), end="")
