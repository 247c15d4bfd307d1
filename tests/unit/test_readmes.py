"""The Chinese README says what the English one does: the same commands, tables, figures, links and settings."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EN, ZH = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))


def first_words(text):
    """Return the commands of all code blocks, without what is said of them."""
    blocks = re.findall(r"```(?:bash|text)\n(.*?)```", text, flags=re.DOTALL)
    return [re.split(r" {2,}|\s+#", line)[0] for block in blocks for line in block.splitlines()]


def test_both_name_the_same_commands():
    assert first_words(EN) == first_words(ZH)
    assert {"scripts/run_matrix.sh", "scripts/test.sh"} <= set(first_words(ZH))


@pytest.mark.parametrize(
    "pattern",
    [
        r"```yaml\n.*?```",
        r"^\| (?:ddp|z\d) .*$",  # rows of measured tables
        r"\| `scenarios/[\w-]+\.yaml` \|.*\| (\d+) \|",
        r"\]\((docs/[^)#]+)",
        r"`(z\d[\w-]*|[a-z]+_[a-z_]+)`",
    ],
)
def test_both_hold_the_same(pattern):
    found = [
        sorted(set(re.findall(pattern, text, flags=re.DOTALL if "yaml\\n" in pattern else re.M))) for text in (EN, ZH)
    ]
    assert found[0] == found[1]
    assert found[0]


def test_every_file_that_they_link_is_there():
    for text in (EN, ZH):
        for link in re.findall(r"\]\(((?!http)[^)#]+)", text):
            assert (ROOT / link).exists(), link
