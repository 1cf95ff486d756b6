"""The form of audio that models listen to: samples of one channel, 16 bits, little-endian."""

from base64 import b64decode
from typing import Annotated

from msgspec import Meta

SAMPLES_PER_SECOND = 16_000
SAMPLE_BYTES = 2
BLANKS = b" \t\r\n"  # that tools put into base64, at the end of each line and of the whole

# Hints to a model about the audio. It reads the last 200 tokens, and all travel with each utterance.
Prompt = Annotated[str, Meta(max_length=64 << 10)]
Keywords = Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=1000)]


def base64_bytes(text: str | bytes) -> bytes:
    """Return the bytes of base64, which may have lines. Raises binascii.Error."""
    data = text.encode() if isinstance(text, str) else text
    return b64decode(data.translate(None, BLANKS), validate=True)
