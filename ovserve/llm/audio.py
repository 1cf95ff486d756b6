"""The form of audio that models listen to: samples of one channel, 16 bits, little-endian."""

from base64 import b64decode

SAMPLES_PER_SECOND = 16_000
SAMPLE_BYTES = 2
BLANKS = b" \t\r\n"  # that tools put into base64, at the end of each line and of the whole


def base64_bytes(text: str | bytes) -> bytes:
    """Return the bytes of base64, which may have lines. Raises binascii.Error."""
    data = text.encode() if isinstance(text, str) else text
    return b64decode(data.translate(None, BLANKS), validate=True)
