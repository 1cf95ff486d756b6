"""POST tokenize and detokenize, GET tokenizer_info: bodies and their mapping.

Tokenize has two forms. OVMS's: `text`, one or several, with truncation and padding; the answer is the ids
alone. vLLM's, which lm-eval speaks: `prompt` or `messages`; the answer has the count and the model's context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ovserve.api.openai.body import decode_body
from ovserve.api.openai.logprobs import NO_IDS, Pictures
from ovserve.api.openai.messages import Message, check_messages, loosen_messages, template_message
from ovserve.api.openai.operation import doc
from ovserve.api.openai.sampling import TokenId
from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import Conversation
from ovserve.llm.model import ModelContext

MAX_LENGTH = 1 << 20  # tokens of padding a request may ask for
INPUTS = ("text", "prompt", "messages")
ONLY_WITH = {
    "text": ("max_length", "pad_to_max_length", "padding_side"),
    "messages": ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"),
}


class TokenizeRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str | None, doc("may be left out when one graph is served")] = None
    text: Annotated[
        str | Annotated[list[str], Meta(min_length=1)] | None,
        doc("OVMS's form: one text or several; the answer has the ids alone"),
    ] = None
    prompt: Annotated[
        str | None, doc("vLLM's form: the answer has the count and the model's context too")
    ] = None
    messages: Annotated[
        Annotated[list[Message], Meta(min_length=1)] | None,
        doc("a conversation, rendered by the chat template"),
    ] = None
    add_special_tokens: Annotated[
        bool | None, doc("default true, but false with messages, whose template writes them")
    ] = None  # default: true, and false with messages, whose template has them
    max_length: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_LENGTH)] | None, doc("with text: cut to so many tokens")
    ] = None
    pad_to_max_length: Annotated[bool | None, doc("with text and max_length")] = None
    padding_side: Annotated[Literal["left", "right"] | None, doc("with text")] = None
    add_generation_prompt: Annotated[bool | None, doc("with messages")] = None
    continue_final_message: Annotated[bool | None, doc("with messages")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, doc("with messages: variables for the chat template")
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, doc("with messages: given to the chat template")] = None
    return_token_strs: Annotated[bool | None, doc("the text of each token too")] = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: Annotated[str | None, doc("may be left out when one graph is served")] = None
    tokens: Annotated[list[TokenId | list[TokenId]], doc("token ids, or lists of them")]
    skip_special_tokens: Annotated[bool | None, doc("leave tokens such as the end of turn out")] = None


class TokenIds(msgspec.Struct):
    """OVMS's answer: one row alone, several as a list."""

    tokens: list[int | list[int]]


class CountedTokens(msgspec.Struct, kw_only=True):
    """vLLM's answer."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizedText(msgspec.Struct):
    prompt: str | list[str]


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """The facts that lm-eval's remote tokenizer reads, under the names of tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    add_bos_token: bool
    vocab_size: int
    model_max_length: int | None
    chat_template: str | None


@dataclass(frozen=True)
class Tokenizing:
    body: TokenizeRequest
    ignored: tuple[str, ...]

    @property
    def add_special_tokens(self) -> bool:
        option = self.body.add_special_tokens
        return self.body.messages is None if option is None else option

    @property
    def param(self) -> str:
        """The field that holds what is tokenised."""
        return next(name for name in INPUTS if getattr(self.body, name) is not None)

    @property
    def texts(self) -> list[str]:
        prompt = self.body.prompt if self.body.text is None else self.body.text
        return [prompt] if isinstance(prompt, str) else list(prompt or ())

    def conversation(self, model: ModelContext) -> Conversation | None:
        """Return what to render, if the body has messages; otherwise it has texts."""
        body = self.body
        if body.messages is None:
            return None
        if model.template is None:
            raise InvalidArgument("this model has no chat template; use prompt", param="messages")
        return model.template.conversation(
            [template_message(m, i, Pictures(NO_IDS)) for i, m in enumerate(body.messages)],
            body.chat_template_kwargs,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
        )


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


def decode_tokenize(body: bytes) -> Tokenizing:
    request, unknown = decode_body(body, _tokenize, loosen_messages)
    inputs = [name for name in INPUTS if getattr(request, name) is not None]
    if len(inputs) != 1:
        listed = " and ".join(inputs) or "none"
        raise InvalidArgument(
            f"{inputs[-1] if inputs else 'prompt'}: expected one of {', '.join(INPUTS)}, got {listed}",
            param=inputs[-1] if inputs else "prompt",
        )
    for owner, names in ONLY_WITH.items():
        for name in names:
            if owner != inputs[0] and getattr(request, name) is not None:
                raise InvalidArgument.at(name, f"only allowed with {owner}, not with {inputs[0]}")
    if request.pad_to_max_length and request.max_length is None:
        raise InvalidArgument.at("pad_to_max_length", "true needs max_length")
    dropped = check_messages(request.messages or [])
    return Tokenizing(request, tuple(sorted([*unknown, *dropped])))


def fit(ids: list[int], body: TokenizeRequest, pad_id: int | None) -> list[int]:
    """Truncated and padded as OVMS's form asks."""
    length = body.max_length
    if length is None:
        return ids
    ids = ids[:length]
    if not body.pad_to_max_length or len(ids) == length:
        return ids
    if pad_id is None:
        raise InvalidArgument.at("pad_to_max_length", "this model has no padding token")
    padding = [pad_id] * (length - len(ids))
    return padding + ids if body.padding_side == "left" else ids + padding


def decode_detokenize(body: bytes) -> tuple[DetokenizeRequest, list[list[int]], tuple[str, ...]]:
    """The body, its rows, and the unknown fields."""
    request, unknown = decode_body(body, _detokenize)
    ignored = tuple(sorted(unknown))
    ids = [token for token in request.tokens if isinstance(token, int)]
    rows = [row for row in request.tokens if isinstance(row, list)]
    if ids and rows:
        raise InvalidArgument.at("tokens", "expected token ids or lists of token ids, got a mixture")
    return request, rows or [ids], ignored
