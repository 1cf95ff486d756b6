"""Requests to an engine and its output, for every API style: the narrow waist of the server.

`api/` makes a GenerateRequest, `engine/` answers it with a stream of Delta, `api/` turns those into bytes.
What only that last step reads is apart, in `Presentation`. The sampling part crosses the process border as
msgpack, which is why all of this is msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ovserve.llm.chat_template import Conversation, EncodedConversation
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.images import Image, ImageSource

# The tools of a request, in one form for every dialect; and how its answer is parsed.
#
# GenerateRequest carries it. It is read for the prompt (`prompt_tools`), by the output parser, and for the
# grammar of calls.


Choice = Literal["none", "auto", "required"]


class ToolPolicy(msgspec.Struct, frozen=True):
    """The tools of a request and what the client demands of their use. Checked: names are unique, `names` are
    among them, a schema is an object.

    `choice` and `names` together say what every spelling of `tool_choice` says:

    | tool_choice                        | choice            | names           | parallel |
    |------------------------------------|-------------------|-----------------|----------|
    | absent, auto                       | auto              | all             | as asked |
    | none                               | none              | ()              | as asked |
    | required, Anthropic's any          | required          | all             | as asked |
    | one function by name               | required          | that one        | False    |
    | allowed_tools, mode auto, required | auto, required    | the listed ones | as asked |

    A function named in `tool_choice` is called exactly once, which is why `parallel` is False then.
    """

    tools: tuple[Mapping[str, Any], ...]  # all of them, in chat's form: {"type", "function": {"name", ...}}
    choice: Choice = "auto"  # none: no calls; required: at least one call; auto: as the model likes
    names: tuple[str, ...] = ()  # the functions that may be called, in the order of `tools`
    parallel: bool = True  # False: one call at most
    unenforced: tuple[str, ...] = ()  # what is not enforced of the schemas of calls that must follow them

    @property
    def prompt_tools(self) -> list[Mapping[str, Any]]:
        """The tools that are put into the prompt: those that may be called, in the form models are trained
        on. `strict` is the server's business."""
        return [
            {**tool, "function": {k: v for k, v in tool["function"].items() if k != "strict"}}
            for tool in self._callable
        ]

    @property
    def _callable(self) -> list[Mapping[str, Any]]:
        names = frozenset(self.names)
        return [tool for tool in self.tools if tool["function"]["name"] in names]

    @property
    def strict(self) -> frozenset[str]:
        """Functions whose arguments must follow their schema also where nothing forces a call."""
        return frozenset(f["name"] for tool in self._callable if (f := tool["function"]).get("strict"))

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """JSON schema of the arguments of each function that may be called. One without parameters takes an
        empty object."""
        nothing = {"type": "object", "properties": {}}
        parameters = {tool["function"]["name"]: tool["function"].get("parameters") for tool in self._callable}
        return {name: nothing if schema is None else schema for name, schema in parameters.items()}

    @property
    def calls(self) -> bool:
        """Return whether the answer may hold calls."""
        return bool(self.names)


class Parsing(msgspec.Struct, frozen=True):
    """The parsing of an answer: names of dialects in `llm.parsing`, and where the prompt left off."""

    tool: str | None = None
    reasoning: str | None = None
    inside_reasoning: bool = False  # the prompt ends inside the reasoning
    reasoning_closed: bool = False  # the prompt closes the reasoning: an end of it in the answer is text
    end_tokens: tuple[str, ...] = ()  # the model's end-of-turn texts; never a part of the answer
    held: bool = False  # a grammar holds the answer, which follows the first end of the reasoning


GREEDY_TEMPERATURE = 0.0


Prompt = str | tuple[int, ...]


class Dry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A penalty for repetitions of several tokens, `multiplier * base ** (length - allowed_length)`."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    penalty_last_n: int = -1  # tokens of prompt and answer that are searched; -1: all
    sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")  # no repetition goes on over these texts


class ReasoningBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bound of an answer's reasoning. All but the first two fields are known with the prompt."""

    tokens: int  # of the reasoning at most, over all of its parts; 0 ends it at once
    message: str = ""  # written before the reasoning is closed
    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    closing: str = ""  # the text that ends it
    inside: bool = False  # the answer begins inside the reasoning
    anywhere: bool = False  # it may begin anywhere in the answer, else only at its beginning
    held: bool = False  # as in Parsing


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """The choice of tokens and the stop conditions; ranges are checked where the request is decoded."""

    max_tokens: int | None = None  # None: as many as the context has room for; 0: the prompt alone
    max_context: int | None = None  # tokens of prompt and answer, where that is less than the graph's
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int | None = None  # None: all tokens
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry: Dry | None = None  # only of the paged engine, as the next two
    xtc_probability: float = 0.0  # with which the likely tokens but the least likely of them are left out
    xtc_threshold: float = 0.1  # from this probability on a token is a likely one
    seed: int = 0
    ignore_eos: bool = False
    # Matched on text, exactly at the character (see kinds/text/worker/decoding.py).
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    repetition_detection: bool = False  # end an answer that only repeats itself
    skip_special_tokens: bool = True
    markup: tuple[str, ...] = ()  # the special tokens in these texts are shown, because the answer is parsed
    n: int = 1  # choices in the answer
    beams: int = 1  # > 1: beam search of this width; the best n come back, all at the end
    beam_groups: int = 1
    length_penalty: float = 1.0
    diversity_penalty: float = 0.0
    logprobs: bool = False
    top_logprobs: int = 0  # of the most likely tokens at each place; more than 0 only with `logprobs`
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each once, and what is added to their logits
    echo: bool = False  # the prompt is the beginning of the answer
    # Of assisted decoding (llm/decoding.py).
    num_assistant_tokens: int | None = None  # None: as the mode has it by default; 0: drafts none, if paged
    assistant_confidence_threshold: float = 0.0  # 0: as the mode has it by default; so is the next field
    max_ngram_size: int = 0
    reasoning_budget: ReasoningBudget | None = None  # only of the paged engine; its prompt is a chat's
    constraint: Constraint | None = None  # what the text must be; proven before the engine sees it


class Presentation(msgspec.Struct, frozen=True, kw_only=True):
    """The presentation of the output to the client. Only writers read it; it does not change the output.

    An endpoint whose writer needs more has a subclass.
    """

    endpoint: str = ""  # whose writer it is, e.g. "chat/completions"
    model: str = ""
    created: int = 0  # unix seconds
    stream: bool = False
    content_type: str = "text/event-stream"  # of a stream
    include_usage: bool = False
    continuous_usage: bool = False  # usage on every chunk
    requested_max_tokens: int | None = None  # what the client asked for, to report a clamp
    top_logprobs: int = 0  # shown at each place; of an engine that knows no others the chosen token
    functions: bool = False  # calls have the older form, `function_call`
    custom_tools: frozenset[str] = frozenset()  # their calls have an input that is text
    stop_sequences: tuple[str, ...] = ()  # the client's own, which may be named as the end of the output
    ignored_params: tuple[str, ...] = ()  # unknown body fields, reported in a header
    adapted: tuple[str, ...] = ()  # how messages were rearranged for the chat template, likewise
    fingerprint: str = ""  # of what generates: model, options, releases

    def without_input(self) -> Presentation:
        """The same without what has the size of the client's body."""
        return self


class GenerateRequest(msgspec.Struct, frozen=True):
    """One request, ready for the engine. A prompt is rendered text, or token ids taken as they are; several
    prompts are answered side by side, choices 0 to n-1 by the first, and so on. An endpoint with messages
    gives a conversation in place of prompts; a node has it rendered before anybody else sees the request."""

    id: str  # public, e.g. "chatcmpl-3f..."; the engine numbers requests itself
    prompts: tuple[Prompt, ...]
    add_special_tokens: bool
    sampling: Sampling
    presentation: Presentation = Presentation()
    reports_admission: bool = False  # the answer begins with the admission, not with the first token
    tools: ToolPolicy | None = None  # None: the request has none
    parsing: Parsing | None = None  # None: all of the text is content
    user: str = ""  # the client's name for its user: users of a caller share a full engine fairly
    conversation: Conversation | EncodedConversation | None = None
    image_sources: tuple[ImageSource, ...] = ()  # what the conversation's tags stand for
    file_sources: tuple[FileSource, ...] = ()  # what the marks in the conversation stand for
    images: tuple[Image, ...] = ()  # the same, loaded: what the prompt's tags stand for
    batch: bool = False  # a line of a batch: it is paused while the engine has other requests
    # Named pieces of the prompt, to explain its length.
    parts: Callable[[], list[tuple[str, str]]] | None = None

    @property
    def choices(self) -> int:
        return (len(self.prompts) or 1) * self.sampling.n  # a conversation is one prompt


def shown_token(text: str, utf8: bytes, prefix: str = "bytes:") -> str:
    """Return the text of a token, or its bytes as escapes after `prefix` if it is a part of a character."""
    try:
        utf8.decode()
    except UnicodeDecodeError:
        return prefix + utf8.decode("utf-8", "backslashreplace")
    return text


class TopToken(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A token that could have been chosen; fields as in `TokenLogprob`."""

    text: str
    utf8: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One token of the answer. `utf8` may be a part of a character; `text` shows it as best it can."""

    text: str
    utf8: bytes
    logprob: float | None  # natural logarithm; None where the engine has none (the first echoed token)
    top: tuple[TopToken, ...] = ()  # the most likely ones, best first, as many as `top_logprobs` asks for


class Delta(msgspec.Struct, array_like=True, gc=False):
    """The tokens that one engine step added to one choice. Text never ends inside a UTF-8 character.

    The first delta of a request is its admission: no text, `prompt_tokens` set. Unless the request
    `reports_admission`, it comes together with the next one. Deltas of one choice may be
    merged (text joined, counts added) when the reader is slower than the engine.
    """

    text: str = ""
    tokens: int = 0  # generated tokens in this delta, those hidden from the text included
    finish_reason: str | None = None  # "stop" or "length" in a choice's last delta, else None
    prompt_tokens: int = 0  # > 0 only in the admission delta
    max_tokens: int = 0  # what the engine will generate at most; set with prompt_tokens
    index: int = 0  # of the choice
    logprobs: list[TokenLogprob] | None = None  # when asked for: one per token that is part of the text
    last: bool = False  # every choice has its finish_reason; nothing follows
    drafted: int = 0  # tokens proposed by a draft model or prompt lookup
    accepted: int = 0  # those of them that are among `tokens`
    # Of prompt_tokens, found in the prefix cache; None: the engine does not report it.
    cached_tokens: int | None = None
    stop_string: str | None = None  # which of the request's stop strings ended the choice; with "stop" only
    repetitive: bool = False  # the choice was ended because it only repeated itself; with "length" only


# Files of a request: how a client sends them, and the markers that hold their places until they are read.
#
# An endpoint puts a marker into a message's text for each file and keeps a FileSource. `sandbox/images/`
# reads the text of a document, a speech-to-text model that of audio; it replaces the marker before the
# conversation is rendered.


MAX_NAME = 256  # characters


class FileSource(msgspec.Struct, frozen=True):
    """`data` is base64 or a data URL with base64."""

    mark: str
    data: str
    param: str  # the field that held it, for errors
    name: str = ""
    audio: bool = False


def document_text(name: str | None, text: str) -> str:
    """The text that the model reads of a document."""
    title = " ".join((name or "").split())[:MAX_NAME]
    return f"[File {title}]\n{text}" if title else f"[File]\n{text}"


def with_files(
    conversation: Conversation | EncodedConversation, sources: Sequence[FileSource], texts: Sequence[str]
) -> Conversation | EncodedConversation:
    """The conversation with the text of each file in its place. Changes the messages, which are also
    used to explain a prompt that is too long."""
    pairs = zip(sources, texts, strict=True)
    # What was said stands there as if it had been written.
    places = {file.mark: text if file.audio else document_text(file.name, text) for file, text in pairs}
    if isinstance(conversation, EncodedConversation):
        inside = {mark.encode(): msgspec.json.encode(text)[1:-1] for mark, text in places.items()}
        marks = re.compile(b"|".join(map(re.escape, inside)))
        return msgspec.structs.replace(
            conversation, json=marks.sub(lambda match: inside[match[0]], conversation.json)
        )
    messages = [_with_texts(message, places) for message in conversation.messages]
    return msgspec.structs.replace(conversation, messages=messages)


def _with_texts(message: Mapping[str, Any], places: Mapping[str, str]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, str) or not isinstance(message, dict):
        return message
    for mark, text in places.items():
        if mark in content:
            content = content.replace(mark, text)
    message["content"] = content
    return message
