"""Input stream handlers as sync sets: which streams of a node wait for one another.

    DefaultInputStreamHandler     one set with every stream
    ImmediateInputStreamHandler   a set for each stream
    SyncSetInputStreamHandler     the sets listed, and one more with the streams not listed

A node's handler wins over the graph's. The scheduler knows sets only, so a new handler is a row here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovserve.graph.node import Node, split_tag_index
from ovserve.protos import calculator_pb2

if TYPE_CHECKING:
    Handler = calculator_pb2.InputStreamHandlerConfig

SUPPORTED = ("DefaultInputStreamHandler", "ImmediateInputStreamHandler", "SyncSetInputStreamHandler")
DEFAULT, IMMEDIATE, _ = SUPPORTED


def plan_sync_sets(
    node: Node, *, immediate: bool = False
) -> tuple[frozenset[tuple[str, int]], tuple[tuple[int, ...], ...]]:
    """Return the back edges of a node as (tag, index), and its sync sets as indexes into its inputs.

    `immediate`: the calculator's inputs do not wait for one another unless the graph names a handler.
    """
    back_edges = _back_edges(node)
    keys = [e.key for e in node.inputs]
    message = node.config.message.node[node.position]
    own = message.HasField("input_stream_handler")
    handler = message.input_stream_handler if own else node.config.message.input_stream_handler
    name = handler.input_stream_handler or DEFAULT
    if immediate and not own and not node.config.message.HasField("input_stream_handler"):
        name = IMMEDIATE
    if name not in SUPPORTED:
        raise node.error(f"{name!r} is not one of {', '.join(SUPPORTED)}", "input_stream_handler", name)
    if name == IMMEDIATE:
        sets: list[tuple[int, ...]] = [(i,) for i in range(len(keys))]
    elif name == "SyncSetInputStreamHandler":
        sets = _listed_sets(node, handler, keys, own)
    else:
        _check_default(node, handler)
        sets = [tuple(range(len(keys)))] if keys else []
    for group in sets:
        backs = [node.inputs[i].text for i in group if keys[i] in back_edges]
        if backs and len(group) > 1:
            raise node.error(
                f"back edge {backs[0]!r} shares a sync set, so the node would wait for itself; "
                "give it a set of its own with SyncSetInputStreamHandler",
                "input_stream_handler",
            )
    return back_edges, tuple(sets)


def _back_edges(node: Node) -> frozenset[tuple[str, int]]:
    keys = [e.key for e in node.inputs]
    seen: set[tuple[str, int]] = set()
    back: set[tuple[str, int]] = set()
    for info in node.config.message.node[node.position].input_stream_info:
        key = split_tag_index(info.tag_index)
        if key is None or key not in keys:
            raise node.error(
                f"{info.tag_index!r} is not an input of this node", "input_stream_info", info.tag_index
            )
        if key in seen:
            raise node.error(f"{info.tag_index!r} is given twice", "input_stream_info", info.tag_index)
        seen.add(key)
        if info.back_edge:
            back.add(key)
    return frozenset(back)


def _listed_sets(
    node: Node, handler: Handler, keys: list[tuple[str, int]], own: bool
) -> list[tuple[int, ...]]:
    options = handler.options.Extensions[calculator_pb2.SyncSetInputStreamHandlerOptions.ext]
    sets: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for sync_set in options.sync_set:
        group = []
        for text in sync_set.tag_index:
            key = split_tag_index(text)
            if key is None or key not in keys:
                if not own:
                    continue  # the graph's handler applies to all nodes, and not every node has every tag
                raise node.error(
                    f"sync_set names {text!r}, not an input of this node",
                    "input_stream_handler",
                    text,
                )
            index = keys.index(key)
            if index in taken:
                raise node.error(f"{text!r} is in two sync sets", "input_stream_handler", text)
            taken.add(index)
            group.append(index)
        if group:
            sets.append(tuple(group))
    rest = tuple(i for i in range(len(keys)) if i not in taken)
    return [*sets, rest] if rest else sets


def _check_default(node: Node, handler: Handler) -> None:
    options = handler.options.Extensions[calculator_pb2.DefaultInputStreamHandlerOptions.ext]
    if options.batch_size not in (0, 1):
        raise node.error(f"batch_size {options.batch_size}: only 1 is supported", "input_stream_handler")
