"""Converts between texts and token ids with the library's tokenizer.

- Rows of a batched decode are filled up with the padding token, which is visible when special tokens are
  kept; so we fill rows ourselves, with an id no vocabulary has, which decodes to nothing.
- Special tokens are hidden by us: the library's own skipping drops markers that the server parses.

Tokenizers that the library makes from GGUF files stop at the model's context length, and its max_length
argument does not change that (measured). An answer to a silently truncated prompt is worse than an error, and
the error should give the prompt's length. So a text that came back at full length is tokenized in pieces, and
a piece that came back so in halves. They are cut before white space that follows a word, where tokenizers
begin a new token anyway. The time is linear in the text: each part of it is in few of the calls, however long
it is.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.model.files import read_model_files
from ovserve.engine.protocol.messages import Add
from ovserve.engine.protocol.specs import Spec, TextFacts
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.text.worker.decoding import Scored
from ovserve.kinds.text.worker.genai.options import sentence, writable
from ovserve.llm.request import Sampling, TokenLogprob, TopToken, shown_token
from ovserve.llm.token_bytes import TokenBytes, token_bytes, validate

Encode = Callable[[str, bool], list[int]]  # text, add_special_tokens

_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_PROBE = "a "
_CHARACTERS_PER_TOKEN = 2  # characters per piece and token of the limit; most pieces are then tokenized once


class WholeText:
    def __init__(self, encode: Encode, expected_limit: int | None) -> None:
        """`expected_limit`: the presumed limit, which is the model's context length."""
        self._encode = encode
        self.limit = _limit(encode, expected_limit)
        bare, dressed = encode("a", False), encode("a", True)
        at = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
        self._before, self._after = dressed[:at], dressed[at + len(bare) :]

    def is_cut(self, length: int) -> bool:
        """Return whether ids of this length may be only those of the beginning."""
        return self.limit is not None and length >= self.limit

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self._encode(text, add_special_tokens)
        if not self.is_cut(len(ids)):
            return ids
        ids = [id_ for piece in self._pieces(text) for id_ in self._by_halves(piece)]
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def _pieces(self, text: str) -> Iterator[str]:
        size = _CHARACTERS_PER_TOKEN * (self.limit or len(text))
        start = 0
        while start < len(text):
            boundary = _WORD_END.search(text, start + size, start + 2 * size)
            end = boundary.start() if boundary else start + size
            yield text[start:end]
            start = end

    def _by_halves(self, text: str) -> list[int]:
        encoded: list[int] = []
        todo = [text]
        while todo:
            part = todo.pop()
            ids = self._encode(part, False)
            if self.is_cut(len(ids)) and len(part) > 1:
                boundary = _WORD_END.search(part, len(part) // 2) or _WORD_END.search(part, 1)
                middle = boundary.start() if boundary and boundary.start() < len(part) else len(part) // 2
                todo += [part[middle:], part[:middle]]
            else:
                encoded += ids
        return encoded


def _limit(encode: Encode, expected: int | None) -> int | None:
    if expected is None:
        return None
    length = len(encode(_PROBE * 2 * expected, False))
    return length if length <= expected else None


FILLER_TOKEN = 2**31 - 1
# What normalizers of texts change:
LOSSY = f"  A\u00e9e\u0301\u1100\u1161\u212b \u00a0\u3000\ufb01\t\r\n{' ' * 200}\U0001f9ff{'#' * 99} z\n\n "
NFC_SHRINKS = 3  # times, the bytes of a text at most
SPECIAL_ROW_TOKENS = 256  # the special tokens of a vocabulary stand together


class Text:
    def __init__(self, tokenizer: ov_genai.Tokenizer, facts: TextFacts) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = facts.vocab_size
        self._token_bytes: TokenBytes | None = None
        self._vocabulary: dict[int, bytes] | None = None  # read for the first part of a character
        self._whole = WholeText(self._encode_ids, facts.max_length)
        self._can_fill = self._filler_decodes_to_nothing()
        self._ends = frozenset(facts.eos_token_ids)
        self._special: dict[int, str] | None = None
        self._hidden: dict[tuple[str, ...], frozenset[int]] = {}  # by what is shown all the same

    @contextmanager
    def proving(self, *, uses_tokenizer: bool) -> Iterator[None]:
        """Try the table of tokens, on a thread of its own; before that, if it uses the
        tokenizer too: it keeps a map without a lock of what its requests were set to."""
        with ThreadPoolExecutor(1, "proof") as thread:
            proof = thread.submit(lambda: prove_tokens(self._tokenizer, self._tokenizer.get_vocab()))
            if uses_tokenizer:
                wait([proof])
            yield
            self.use(proof.result())

    def use(self, proof: Proof) -> None:
        """Take what `prove_tokens` found for this tokenizer."""
        self._token_bytes, self._special = proof

    def longest_token(self) -> int:
        """Bytes of text that a token stands for at most; 0 where a text may hold more than its tokens."""
        if self._token_bytes is None:
            return 0
        text = self._token_bytes.decode([self.encode(LOSSY, False)])[0]
        if text == LOSSY:
            return self._token_bytes.longest
        return NFC_SHRINKS * self._token_bytes.longest if text == unicodedata.normalize("NFC", LOSSY) else 0

    def stop_ids(self, sampling: Sampling) -> frozenset[int]:
        """Ids that end an answer."""
        stop_ids = frozenset(sampling.stop_token_ids)
        return stop_ids if sampling.ignore_eos else stop_ids | self._ends

    def hidden(self, skip_special_tokens: bool, markup: tuple[str, ...] = ()) -> frozenset[int]:
        """Ids that are not text. Special tokens within `markup` are text."""
        if not skip_special_tokens:
            return frozenset()
        hidden = self._hidden.get(markup)
        if hidden is None:
            if self._special is None:
                self._special = special_tokens(self._tokenizer, self._tokenizer.get_vocab())
            special = (i for i, text in self._special.items() if not any(text in part for part in markup))
            fixed = {self._tokenizer.get_bos_token_id(), self._tokenizer.get_pad_token_id()}
            hidden = self._hidden[markup] = self._ends.union(fixed, special)
        return hidden

    # ---- to ids

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        """Token ids by request id; none of a prompt that cannot be tokenised. One call of the library for
        many texts takes a quarter of the time of many calls (measured: 50 and 190 us a prompt)."""
        encoded = {r.id: _unpacked(r.ids) for r in requests if r.ids}
        for special in (True, False):
            texts = {
                r.id: r.prompt
                for r in requests
                if isinstance(r.prompt, str) and r.add_special_tokens is special and not r.ids
            }
            if len(texts) < 2:
                continue
            try:
                rows = self._tokenizer.encode(list(texts.values()), add_special_tokens=special)
            except (RuntimeError, TypeError):
                continue  # whose fault it is will be found below
            for id_, ids, mask in zip(texts, rows.input_ids.data, rows.attention_mask.data, strict=True):
                whole = ids[mask == 1]
                if not self._whole.is_cut(len(whole)):
                    encoded[id_] = ids_tensor(whole)
        for request in requests:
            if request.id not in encoded:
                with suppress(InvalidArgument):  # raised again when the request is added
                    encoded[request.id] = self.encode_prompt(request)
        return encoded

    def encode_prompt(self, request: Add) -> openvino.Tensor:
        """Return ids of shape [1, tokens]."""
        if request.ids:
            return _unpacked(request.ids)
        if isinstance(request.prompt, str):
            tensor = self._encode(request.prompt, request.add_special_tokens)
            if not self._whole.is_cut(tensor.shape[1]):
                return tensor
            return ids_tensor(self._whole.encode(request.prompt, request.add_special_tokens))
        self._check_ids(request.prompt, "prompt")
        return ids_tensor(request.prompt)

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        # One by one: a batch comes back padded, and the mask that separates padding from text costs more.
        return [self._whole.encode(text, add_special_tokens) for text in texts]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """All ids, however long the text is. Raises InvalidArgument."""
        return self._whole.encode(text, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> openvino.Tensor:
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).input_ids
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(f"the prompt cannot be tokenised: {sentence(error)}") from error

    def _encode_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._encode(text, add_special_tokens).data[0].tolist()
        return ids

    def _check_ids(self, ids: Iterable[int], param: str) -> None:
        for id_ in ids:
            if not 0 <= id_ < self._vocab_size:
                raise InvalidArgument.at(
                    param, f"token id {id_} is not in the vocabulary of {self._vocab_size}"
                )

    # ---- to text

    def prompt_text(self, prompt: str | tuple[int, ...]) -> str:
        return prompt if isinstance(prompt, str) else self.decode([list(prompt)])[0]

    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]:
        for row in rows:
            self._check_ids(row, "tokens")
        if escaped:
            pieces = self._pieces([*{id_ for row in rows for id_ in row}])
            return ["".join([shown_token(*pieces[id_]) for id_ in row]) for row in rows]
        hidden = self.hidden(skip_special_tokens)
        return self.decode([[id_ for id_ in row if id_ not in hidden] for row in rows])

    def decode(self, rows: list[list[int]]) -> list[str]:
        """Use the table where that is proven right, else one library call for all rows (see
        token_bytes.py)."""
        if self._token_bytes is not None:
            return self._token_bytes.decode(rows)
        if not rows:
            return []
        longest = max(map(len, rows))
        if not self._can_fill:
            return self._decode_by_length(rows)
        filled = [row + [FILLER_TOKEN] * (longest - len(row)) if len(row) < longest else row for row in rows]
        texts: list[str] = self._tokenizer.decode(filled, skip_special_tokens=False)
        return texts

    def logprobs(self, scored: list[Scored]) -> list[TokenLogprob]:
        """Return ids with their log-probabilities in the form for clients."""
        ids = {id_ for id_, _, top in scored for id_ in (id_, *(other for other, _ in top))}
        pieces = self._pieces([*ids])
        return [
            TokenLogprob(*pieces[id_], logprob, tuple(TopToken(*pieces[i], other) for i, other in top))
            for id_, logprob, top in scored
        ]

    def bytes_of(self, id_: int) -> bytes:
        """Return what a token adds to a text."""
        return self._pieces([id_])[id_][1]

    def _pieces(self, ids: list[int]) -> dict[int, tuple[str, bytes]]:
        if self._token_bytes is not None:
            pieces = [self._token_bytes.of(id_) for id_ in ids]
        else:
            texts = self.decode([[id_] for id_ in ids])
            pieces = [self._part(id_, text) for id_, text in zip(ids, texts, strict=True)]
        return {
            id_: (piece.decode("utf-8", "replace"), piece) for id_, piece in zip(ids, pieces, strict=True)
        }

    def _part(self, id_: int, text: str) -> bytes:
        if self._vocabulary is None:
            self._vocabulary = {id_: token for token, id_ in self._tokenizer.get_vocab().items()}
        return token_bytes(text, self._vocabulary.get(id_, b""))

    def _decode_by_length(self, rows: list[list[int]]) -> list[str]:
        return _decode_by_length(self._tokenizer, rows)

    def _filler_decodes_to_nothing(self) -> bool:
        rows = [[id_ % self._vocab_size for id_ in range(start, start + 3)] for start in (3, 97, 997)]
        plain = self._tokenizer.decode(rows, skip_special_tokens=False)
        filled = self._tokenizer.decode([row + [FILLER_TOKEN] * 2 for row in rows], skip_special_tokens=False)
        nothing = self._tokenizer.decode([[FILLER_TOKEN]], skip_special_tokens=False)
        return bool(plain == filled and nothing == [""])


class Proof(NamedTuple):
    table: TokenBytes | None  # of all tokens; None if that would answer differently (see token_bytes.py)
    special: dict[int, str]


def prove_tokens(tokenizer: ov_genai.Tokenizer, tokens: dict[bytes, int]) -> Proof:
    """`tokens`: its `get_vocab()`, of which each call makes other objects."""
    table = validate(tokens, functools.partial(_decode_by_length, tokenizer))
    return Proof(table, special_tokens(tokenizer, tokens))


def special_tokens(tokenizer: ov_genai.Tokenizer, tokens: dict[bytes, int]) -> dict[int, str]:
    """Return the tokens that the library skips, with their texts. Rows of many tokens find the few."""
    ids = sorted(tokens.values())
    rows = [ids[at : at + SPECIAL_ROW_TOKENS] for at in range(0, len(ids), SPECIAL_ROW_TOKENS)]
    for _ in range(2):
        long = _decode_by_length(tokenizer, rows)
        short = _decode_by_length(tokenizer, rows, skip=True)
        special = {row[0]: text for row, text, other in zip(rows, long, short, strict=True) if text != other}
        rows = [[id_] for row in rows if row[0] in special for id_ in row]
    return special


def _decode_by_length(tokenizer: ov_genai.Tokenizer, rows: list[list[int]], skip: bool = False) -> list[str]:
    texts = [""] * len(rows)
    for length in {len(row) for row in rows} - {0}:
        places = [at for at, row in enumerate(rows) if len(row) == length]
        decoded = tokenizer.decode([rows[at] for at in places], skip_special_tokens=skip)
        for at, text in zip(places, decoded, strict=True):
            texts[at] = text
    return texts


def open_text(spec: Spec, facts: TextFacts) -> Text:
    """Load without the model. `facts` are its engine's; raises LoadError."""
    try:
        files = read_model_files(spec.model_path)
        # The engine's context may be bounded by its cache; a tokenizer cuts at that of the model.
        facts = msgspec.structs.replace(facts, max_length=files.max_length)
        with writable(spec.model_path) as path:
            return Text(ov_genai.Tokenizer(path), facts)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), file=spec.model_path) from error


def _unpacked(ids: bytes) -> openvino.Tensor:
    return ids_tensor(array("i", ids))


def ids_tensor(ids: Collection[int]) -> openvino.Tensor:
    """Return ids of shape [1, tokens]."""
    tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, len(ids)]))
    if len(ids):
        tensor.data[0] = ids
    return tensor
