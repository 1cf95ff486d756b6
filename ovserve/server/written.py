"""The options of a graph that `ovserve pull` wrote, for a command line that changes some of them.

Pull chooses the engine and the type of the KV cache for the processor. So `ovserve serve smollm2
--max_num_seqs 8` must not lose them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ovserve.errors import LoadError
from ovserve.graph.config import load_graph
from ovserve.protos.llm_pb2 import LLMCalculatorOptions
from ovserve.pull import record
from ovserve.pull.graph_file import check_options, is_changed
from ovserve.pull.graph_text import OPTIONS, OptionValue, graph_text


def with_written(file: Path, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Return `given` with the options that pull wrote into the graph `file` where they are not given.

    The engine is left out if it cannot be used with `given`. A graph that pull did not write adds nothing.
    """
    written = _written(file, given)
    if "engine" in written:
        try:
            check_options(graph_text({**written, **given}, "./"))
        except LoadError:
            del written["engine"]
    return {**written, **given}


def _written(file: Path, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    directory = file.parent
    if not record.read(directory).graph or is_changed(directory, record.read(directory)):
        return {}
    names = {option.field or option.name: option.name for option in OPTIONS if not option.property}
    config = load_graph(file, directory)
    found: dict[str, OptionValue] = {}
    for position in range(len(config.message.node)):
        if (options := config.options(position, LLMCalculatorOptions)) is None:
            continue
        for field, value in options.ListFields():
            if (name := names.get(field.name)) is not None:
                enum = field.enum_type
                found[name] = value if enum is None else enum.values_by_number[value].name
    if "plugin_config" in found:
        found["plugin_config"] = _without(str(found["plugin_config"]), given)
    return found


def _without(plugin_config: str, given: Mapping[str, OptionValue]) -> str:
    """Leave out the properties that have a flag of their own, where that is given."""
    flags = {option.property: option.name for option in OPTIONS if option.property}
    properties = json.loads(plugin_config or "{}")
    return json.dumps({key: value for key, value in properties.items() if flags.get(key) not in given})
