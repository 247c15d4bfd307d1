"""YAML whose mappings have each key once; PyYAML alone would silently keep the last."""

from typing import Any

import yaml


class UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, and one that is no word (``null: 1``)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As that of PyYAML, which calls it."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            if key in seen:
                message = f"the key '{key}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
