"""A tokenizer that is more than a table of bytes must not be decoded by one."""

from ovserve.llm.token_bytes import Rows, validate

BYTES = {bytes([byte]): byte for byte in range(256)}
WORDS = {b" the": 256, b" .": 257, b"word": 258, " 日".encode(): 259} | {
    b"w%d" % n: 260 + n for n in range(64)
}
BYTE_LEVEL = BYTES | WORDS
TOKENS = {id_: token for token, id_ in BYTE_LEVEL.items()}


def joined(rows: Rows, errors: str = "ignore") -> list[str]:
    return [b"".join(TOKENS[id_] for id_ in row).decode("utf-8", errors) for row in rows]


def test_byte_level_is_proven() -> None:
    table = validate(BYTE_LEVEL, joined)
    assert table is not None
    assert table.decode([[256, 258], [], list("é".encode())]) == [" theword", "", "é"]
    assert table.decode([[0xC3], [256, 2**31 - 1, 999]]) == ["", " the"]


def test_replacing_is_found_out() -> None:
    table = validate(BYTE_LEVEL, lambda rows: joined(rows, "replace"))
    assert table is not None
    assert table.decode([[0xC3]]) == ["\ufffd"]


def test_dropping_the_first_blank_is_not_a_table() -> None:
    assert validate(BYTE_LEVEL, lambda rows: [text.removeprefix(" ") for text in joined(rows)]) is None


def test_cleaning_up_between_tokens_is_not_a_table() -> None:
    assert validate(BYTE_LEVEL, lambda rows: [text.replace("dw", "d w") for text in joined(rows)]) is None


def test_a_vocabulary_without_all_bytes_is_not_a_table() -> None:
    some = {token: id_ for token, id_ in BYTE_LEVEL.items() if token != b"\xc3"}
    assert validate(some, joined) is None
    assert validate({}, joined) is None
