"""Decode a JSON body into a struct with errors that name the field and the value, and note unknown fields.

Used by every endpoint. msgspec gives the JSON path of the first fault. The value is looked up by that path,
and so is what the type says of it (`shapes.py`): the path of a member of a map does not name the member, and
an enum's fault not its values.

A key that occurs twice in one object is rejected: msgspec keeps the last, OVMS the first, and a proxy may
have judged by either. msgspec does not detect it, so the standard library's parser reads the body once more:
8 us for 3.5 KB, 0.2 ms for the 69 KB of a coding agent. What it reads is searched for unknown fields.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from ovserve.api.openai.operation import Refused
from ovserve.api.openai.shapes import Step, shape_of
from ovserve.errors import InvalidArgument, UnsupportedParameter, shortened

NOTHING = object()

_FAULT = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_MEMBER = "..."  # msgspec's word for some member of a map


def explain(fault: str, body: bytes, type_: Any) -> InvalidArgument:
    """The error for msgspec's text."""
    match = _FAULT.fullmatch(fault)
    assert match is not None, "the pattern matches any text"
    what, steps = match["what"], steps_of(match["path"] or "")
    root = _decoded(body)
    if _MEMBER in steps or match["key"]:
        steps = _with_member(steps, fault, root, type_)
    if match["key"]:
        *steps, key = steps
        param = field_path(steps)
        return InvalidArgument.at(param, f"a key is wrong: {_lower(what)}, got {show(key)}")
    param = field_path(steps)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{param}.{missing[1]}" if param else missing[1]
        return InvalidArgument.at(name, "required, but missing")
    value = look_up(root, steps)
    if choices := [c for c in shape_of(type_).choices_at(steps) if c is not None]:
        what = f"expected one of {', '.join(map(str, choices))}"
    suffix = "" if value is NOTHING else f", got {show(value)}"
    what = without_type(what) if suffix else what
    return InvalidArgument(f"{param or 'body'}: {_lower(what)}{suffix}", param=param or None)


def without_type(what: str) -> str:
    """Return msgspec's text without the type that it found, for an error that shows the value instead."""
    return re.sub(r", got `[^`]*`$", "", what)


def steps_of(path: str) -> list[Step]:
    """Split a path like `$.messages[0].role`; a member of a map without a name is "..."."""
    return [name or (int(at) if at.isdigit() else at) for name, at in _STEP.findall(path)]


def field_path(steps: list[Step]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{shortened(step)}" for step in steps)
    return text.removeprefix(".")


def look_up(value: Any, steps: list[Step]) -> Any:
    """NOTHING where there is none."""
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return NOTHING
    return value


def shown_value(body: bytes, param: str) -> str:
    """The beginning of the value an error is about, by its `param`; null when there is none."""
    value = look_up(_decoded(body), steps_of(f".{param}"))
    if isinstance(value, str):
        return shortened(value)
    return show(None if value is NOTHING else value)


def show(value: Any) -> str:
    return shortened(msgspec.json.encode(value).decode())


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):  # the parts that no struct knows need not be sound
        return NOTHING


def _with_member(steps: list[Step], fault: str, root: Any, type_: Any) -> list[Step]:
    """The steps with the name of the member at fault. The first one is found by halves: what is up to it has
    the fault, what is before it does not."""
    at = steps.index(_MEMBER) if _MEMBER in steps else len(steps)
    members = look_up(root, steps[:at])
    if not isinstance(members, dict):
        return steps[:at]
    names, values = list(members), dict(members)
    low, high = 1, len(names)
    while low < high:
        middle = (low + high) // 2
        members.clear()
        members.update((name, values[name]) for name in names[:middle])
        low, high = (low, middle) if _has(fault, root, type_) else (middle + 1, high)
    members.clear()
    members.update(values)
    return [*steps[:at], names[low - 1], *steps[at + 1 :]]


def _has(fault: str, root: Any, type_: Any) -> bool:
    try:
        msgspec.convert(root, type_)
    except msgspec.ValidationError as exc:
        return str(exc) == fault
    return False


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


T = TypeVar("T", bound=msgspec.Struct)
Loosen = Callable[[Any], None]  # takes out of a decoded body what other servers made and no struct knows

SCAN_LIMIT = 64 * 1024  # bytes of a string that is looked at as a whole only where it must be
MAX_IMAGE_PARTS = 256  # of one body that are looked for; the search runs in Python
# A body of so many values and so much text is decoded in the event loop: about 40 ms for the worst of them.
LOOP_NODES = 16_000
LOOP_BYTES = 2 << 20
_IMAGE = re.compile(rb'(?<!\\)"data:[a-z/;=]*base64,|"data"\s*:\s*"')  # a data URL, and Anthropic's form

_WANTS_WHOLE = re.compile(r"`[^`]*\bint\b[^`]*`, got `float`")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING = msgspec.Raw(b"null")


def decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The body's top-level fields, undecoded. Raises InvalidArgument unless it is a JSON object."""
    try:
        return _fields.decode(body)
    except msgspec.ValidationError:
        raise InvalidArgument("the body is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body is not valid JSON: {exc}") from None
    except RecursionError:  # msgspec counts nesting against the interpreter's limit, about 1,000
        raise InvalidArgument("the body nests too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        short_name = shortened(name)
        raise InvalidArgument(f"{short_name!r} occurs twice in one object of the body", param=short_name)
    return members


_walk = json.JSONDecoder(object_pairs_hook=_unique, parse_int=len, parse_float=len).decode


def without_images(body: bytes) -> bytes:
    """The body without the inside of images, which have no keys: 0.1 s less for one of 15 MB. A quote before
    `data:` begins a string unless a backslash precedes it, and base64 has neither quotes nor backslashes."""
    parts: list[bytes] = []
    copied = at = 0
    for _ in range(MAX_IMAGE_PARTS):
        if (at := body.find(b'"data', at)) < 0:
            break
        image = _IMAGE.match(body, at)
        at = at + 1 if image is None else image.end()
        end = body.find(b'"', at)
        if image is not None and end - at > SCAN_LIMIT and body.find(b"\\", at, end) < 0:
            parts.append(body[copied:at])
            copied = at = end
    return b"".join([*parts, body[copied:]])


def unique_members(body: bytes) -> dict[str, Any]:
    """The body with other numbers and without the inside of images, to look at names. Raises InvalidArgument
    for a key that occurs twice in any object, and for a body that is not a JSON object, is not Unicode or
    nests too deeply."""
    try:
        members = _walk((without_images(body) if len(body) > SCAN_LIMIT else body).decode())
    except ValueError as exc:
        decode_fields(body)  # raises the same error in better words
        raise InvalidArgument(f"the body is not valid JSON: {exc}") from None
    except RecursionError:
        decode_fields(body)
        raise InvalidArgument("the body nests too deeply") from None
    if not isinstance(members, dict):
        raise InvalidArgument("the body is not a JSON object")
    return members


def with_model(body: bytes, model: str) -> bytes:
    """The body naming `model`, whatever it named before."""
    unique_members(body)  # the new body shows none that occurs twice
    return msgspec.json.encode({**decode_fields(body), "model": model})


def structure_bytes(body: bytes) -> int:
    """Count `,`, `{` and `[`, also those in texts: at least half of the number of values."""
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def is_light(body: bytes) -> bool:
    """Return whether a body may be decoded in the event loop. Images are skipped, so they do not count."""
    if len(body) <= LOOP_NODES:
        return True
    text = without_images(body) if len(body) > SCAN_LIMIT else body
    return len(text) <= LOOP_BYTES and structure_bytes(text) <= LOOP_NODES


class _Model(msgspec.Struct):
    model: str


_model = msgspec.json.Decoder(_Model)


def peek_model(body: bytes) -> str:
    """Return the model that a body names, without decoding the rest. Raises InvalidArgument."""
    try:
        return _model.decode(body).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decode_fields(body)  # says whether it is JSON at all
        return decode_struct(body, _model).model


class _Head(msgspec.Struct):
    model: Any = None
    stream: Any = None


_head = msgspec.json.Decoder(_Head)


class Head(NamedTuple):
    """The fields that the server acts on. `large`: the body is decoded in another process."""

    large: bool = False
    model: str | None = None  # None where the field is missing or not a string
    stream: bool = False


UNREAD = Head()


def read_head(body: bytes, *, large: bool = False) -> Head:
    """The head of any body at all; what is wrong with it is found where it is decoded."""
    try:
        head = _head.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Head(large)
    model = head.model if isinstance(head.model, str) else None
    return Head(large, model, head.stream is True)


class _MaybeModel(msgspec.Struct):
    model: str | None = None


_maybe_model = msgspec.json.Decoder(_MaybeModel)


def peek_optional_model(body: bytes) -> str | None:
    """Like `peek_model`, for paths where a model need not be named."""
    return decode_body(body, _maybe_model)[0].model


def decode_body(
    body: bytes, decoder: msgspec.json.Decoder[T], loosen: Loosen | None = None
) -> tuple[T, dict[str, msgspec.Raw]]:
    """The struct, and the fields that it does not know: those at the top by name, inner ones by a path such
    as `messages[0].odd`, the first of each kind. `loosen` is called for a body that does not fit the type."""
    members = unique_members(body)
    decoded = decode_struct(body, decoder, loosen)
    unknown, inner = shape_of(cast(Any, decoder.type)).unknown(members)
    unknown_fields = dict.fromkeys(inner, _NOTHING)
    if unknown:
        fields = decode_fields(body)
        unknown_fields |= {name: fields[name] for name in unknown}
    return decoded, unknown_fields


def decode_struct(body: bytes, decoder: msgspec.json.Decoder[T], loosen: Loosen | None = None) -> T:
    """The struct alone; a key that occurs twice is not found. Raises InvalidArgument."""
    try:
        try:
            return decoder.decode(body)
        except msgspec.ValidationError as exc:
            if loosen is None and not _WANTS_WHOLE.search(str(exc)):
                raise
            return _decode_loosely(body, decoder, loosen)
    except msgspec.ValidationError as exc:
        raise explain(str(exc), body, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body is not valid JSON: {exc}") from None
    except RecursionError:  # msgspec counts nesting against the interpreter's limit, about 1,000
        raise InvalidArgument("the body nests too deeply") from None


def _decode_loosely(body: bytes, decoder: msgspec.json.Decoder[T], loosen: Loosen | None) -> T:
    """The struct of a body that has 5.0 where an integer belongs, which is that integer; 5.5 is none."""
    value, kind = msgspec.json.decode(body), cast(type[T], decoder.type)
    if loosen is not None:
        loosen(value)
    return msgspec.convert(shape_of(kind).with_whole_numbers(value), kind)


def refuse_unsupported(fields: dict[str, msgspec.Raw], table: Mapping[str, Refused]) -> None:
    """Reject known fields that are not supported, unless null or at a value that asks for nothing.

    Those are removed from `fields`; what stays there is unknown and is reported to the client.
    """
    for name in [n for n in fields if n in table]:
        raw, refused = fields.pop(name), table[name]
        try:
            value = msgspec.json.decode(raw)
        except msgspec.ValidationError as exc:  # a number beyond all bounds; Raw does not look
            raise InvalidArgument.at(name, f"{exc}, got {shortened(bytes(raw).decode())}") from None
        if value is not None and not any(value == n and type(value) is type(n) for n in refused.neutral):
            raise UnsupportedParameter.at(
                name, f"{show(value)} is not supported by this server: {refused.why}"
            )


# Bounds on one JSON body: values, properties, tools, messages, tensors.
#
# The time that a body costs grows with the number of its JSON values, not with its bytes: a picture of 10 MB
# is one value. A `,`, `{` or `[` precedes every value but the first of an array or object. So those three
# bytes, counted outside of strings, are the number of values to within a factor of two.


# Fields that hold the data of a request. All others are parameters, which stay in the server as they are.
TEXT_PAIRS = ("text_1", "text_2", "data_1", "data_2", "queries", "items")  # of a score
DATA = ("messages", "input", "prompt", "tokens", "inputs", "instances", "system", *TEXT_PAIRS)
# Which fields are lists that an option bounds.
LISTS = {
    "max_tools": ("tools",),
    "max_messages": ("messages", "input", "text", "tokens", *TEXT_PAIRS),
    "max_tensors": ("inputs", "outputs"),
}
SCAN_SLICE = 1 << 20

_items = msgspec.json.Decoder(list[msgspec.Raw])
_STRUCTURE = b',{["'
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE))


@dataclass(frozen=True)
class BodyBounds:
    """Each is the largest number accepted, and the option of the same name sets it."""

    max_json_nodes: int = 1_000_000
    max_properties: int = 20_000
    max_tools: int = 1_024
    max_messages: int = 10_000
    max_tensors: int = 1_024

    @property
    def smallest(self) -> int:
        """A body of so few bytes keeps every bound."""
        return min(
            self.max_json_nodes, self.max_properties, self.max_tools, self.max_messages, self.max_tensors
        )


DEFAULT_BOUNDS = BodyBounds()


def count_nodes(body: bytes, enough: int) -> int:
    """The number of `,`, `{` and `[` outside of strings; some number above `enough` when there are more."""
    if structure_bytes(body) <= enough:
        return structure_bytes(body)  # with those inside of strings, and still few
    # Without escaped backslashes every backslash that is left escapes what follows it.
    text = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    nodes, outside = 0, True
    for at in range(0, len(text), SCAN_SLICE):  # a slice at a time: the pieces of all of it take a gigabyte
        pieces = text[at : at + SCAN_SLICE].split(b'"')
        nodes += sum(map(len, pieces[0 if outside else 1 :: 2]))
        outside ^= len(pieces) % 2 == 0
        if nodes > enough:
            break
    return nodes


def check_bounds(body: bytes, bounds: BodyBounds) -> None:
    """Raises InvalidArgument that names the bound and both numbers, or the key that occurs twice."""
    text = without_images(body)
    if structure_bytes(text) <= bounds.smallest:
        return
    nodes = count_nodes(text, bounds.max_json_nodes)
    if nodes > bounds.max_json_nodes:
        raise over(
            "body", f"more than {bounds.max_json_nodes} JSON values", bounds.max_json_nodes, "json_nodes"
        )
    try:
        fields = decode_fields(body)
    except InvalidArgument:
        return  # the decoder of its endpoint says what is wrong
    _check_lengths(fields, bounds)  # first: they name what there is too much of
    _check_parameters(fields, bounds)


def _check_parameters(fields: dict[str, msgspec.Raw], bounds: BodyBounds) -> None:
    limit = bounds.max_properties
    total, worst, most = 0, "", -1
    for name, raw in fields.items():
        if name in DATA:
            continue
        value = bytes(raw)
        if name == "text" and not value.startswith(b"{"):  # an object of options in responses, else data
            continue
        here = 1 + count_nodes(value, limit)
        total += here
        if here > most:
            worst, most = name, here
    if total <= limit:
        return
    if most <= limit // 2:
        raise over("body", f"{len(fields)} fields", limit, "properties")
    raise over(
        worst if len(worst) <= 64 else worst[:64] + "...",
        f"{total} JSON values besides the data of the request",
        limit,
        "properties",
    )


def _check_lengths(fields: dict[str, msgspec.Raw], bounds: BodyBounds) -> None:
    for option, names in LISTS.items():
        limit = getattr(bounds, option)
        for name in names:
            raw = bytes(fields.get(name, b""))
            if len(raw) > limit and raw.startswith(b"[") and (length := _length(name, raw)) > limit:
                raise over(name, f"{length} elements", limit, option.removeprefix("max_"))


def _length(name: str, raw: bytes) -> int:
    if name == "tokens":  # ids, which cost next to nothing, or rows of ids
        return raw.count(b"[") - 1
    return len(_items.decode(raw))


def over(param: str, amount: str, limit: int, option: str) -> InvalidArgument:
    """The error for a request past the bound of an option; `param` is "body" where no field is to blame."""
    return InvalidArgument(
        f"{param}: got {amount}, and the server accepts at most {limit} (--max_{option})",
        param=None if param == "body" else param,
    )
