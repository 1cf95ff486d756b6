"""The form of audio that models listen to: samples of one channel, 16 bits, little-endian."""

SAMPLES_PER_SECOND = 16_000
SAMPLE_BYTES = 2
