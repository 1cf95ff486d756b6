"""Audio of requests, decoded in processes of their own to 16 kHz, one channel, 16 bit.

WAV is read here with numpy; other formats by the library `av`, of the extra `audio`.
"""
