"""Loads YAML from files of users, with a limit on the expansion of aliases."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from .size import MOST_ITEMS, is_too_large


class BoundedLoader(yaml.SafeLoader):
    """Refuses a document whose aliases expand to too many items, before it builds any of them."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and is_too_large(node, _inner_nodes):
            raise yaml.constructor.ConstructorError(None, None, f"its aliases expand to more than {MOST_ITEMS} items")
        return node


def _inner_nodes(node: yaml.Node) -> Collection[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [inner for pair in node.value for inner in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()
