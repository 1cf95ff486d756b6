"""Find eSpeak NG, which makes the phonemes of words that are in no dictionary, and of other languages.

The library loads it at run time. Without it words that its English dictionary lacks are left out.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Mapping

LIBRARY, DATA = "MISAKI_ESPEAK_LIBRARY", "ESPEAK_DATA_PATH"


def find_espeak() -> Mapping[str, str] | None:
    """Return the environment with which the library finds it: the user's, the system's or the extra's.

    None if there is none.
    """
    if os.environ.get(LIBRARY) or ctypes.util.find_library("espeak-ng"):
        return {}
    try:
        import espeakng_loader
    except ImportError:
        return None
    return {LIBRARY: str(espeakng_loader.get_library_path()), DATA: str(espeakng_loader.get_data_path())}
