import json
import re
from pathlib import Path

import pytest
import yaml

from bench import __version__
from bench.analysis.frame import frame
from bench.analysis.rules import RULES
from bench.cell import Cell
from bench.generated import DOCS, TABLES, renewed
from bench.record import Record, parse_record
from bench.scenario import Scenario
from bench.validity.known_bad import table
from bench.zero.applicability import KEYS

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_that_of_the_code():
    """Mend with: python -m bench.record > docs/record.schema.json."""
    assert json.loads((ROOT / "docs" / "record.schema.json").read_text()) == Record.model_json_schema()


def test_the_example_in_the_readme_is_a_scenario():
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    example = example.replace("5e8", "500000000")  # plain YAML reads it as text; zerostage's loader does not
    assert Scenario.model_validate(yaml.safe_load(example))


def test_the_readme_names_every_setting_of_a_scenario():
    readme = (ROOT / "README.md").read_text()
    for name in [*Scenario.model_fields, *Scenario.model_fields["matrix"].annotation.model_fields]:
        if name != "description":
            assert name in readme, name


@pytest.mark.parametrize("name", ["v1-completed", "v3-emulated", "v3-measured"])
def test_every_column_of_the_frame_is_in_the_documents(name):
    path = ROOT / "tests" / "data" / "records" / f"{name}.json"
    text = (ROOT / "docs" / "metrics.md").read_text()
    found = frame([parse_record(path.read_text(), str(path))]).columns
    known = {column for column in found if column.startswith("stack_")}
    assert [column for column in found if f"| `{column}` |" not in text and column not in known] == []


def test_versions_agree():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_shipped_defaults_of_a_cell_are_those_of_a_scenario():
    """A default that differed would change the id of every cell that leaves the setting out."""
    for name in ("data", "optimizer", "seed", "warmup_steps", "steps"):
        assert Cell.model_fields[name].default == Scenario.model_fields[name].default, name


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_those_of_the_data(name):
    """Mend with: python -m bench.generated."""
    document, written = TABLES[name]
    text = (DOCS / document).read_text()
    assert renewed(text, name, written()) == text


def test_every_id_of_the_data_is_in_the_documents():
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    assert [entry.id for entry in table() if f"| {entry.id} |" not in metrics] == []
    assert [rule.id for rule in RULES if f"| {rule.id} |" not in metrics] == []
    stages = (ROOT / "docs" / "zero-stages.md").read_text()
    assert [key for key in KEYS if f"| `{key}` |" not in stages] == []


def test_a_table_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="no place for the table 'known-bad'"):
        renewed("no marks here", "known-bad", "| a |")
