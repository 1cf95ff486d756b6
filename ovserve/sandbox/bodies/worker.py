"""A process that decodes large bodies: `python -m ovserve.sandbox.bodies.worker FD SECONDS BYTES`.

Started by `pool.py`. It answers one call at a time, within SECONDS and BYTES, as `sandbox/base.py` keeps
them. The server names the function; nothing a client sends does. It is the polite neighbour of the engine and
of the event loop.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import traceback
from importlib import import_module

from ovserve.errors import OvserveError
from ovserve.sandbox.base import answer_all
from ovserve.sandbox.bodies.messages import Answer, Broken, Call, Raised, Returned

NICENESS = 5


def answer(call: Call) -> Answer:
    try:
        return Returned(_call(call))
    except OvserveError as error:
        error.__cause__ = error.__context__ = None
        return Raised(pickle.dumps(error))
    except MemoryError:
        return Broken(True, "it takes too much memory")
    except Exception:  # noqa: BLE001 - a border between processes: the server logs it and raises Internal
        return Broken(False, traceback.format_exc())


def _call(call: Call) -> bytes:
    module, _, name = call.function.partition(":")
    function = getattr(import_module(module), name)
    return pickle.dumps(function(*pickle.loads(call.arguments)), pickle.HIGHEST_PROTOCOL)


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    gc.disable()  # what a call makes ends with it, and holds no circles worth a look at a million values
    return answer_all(argv, Call, answer, "body process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
