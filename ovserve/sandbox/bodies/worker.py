"""A process that decodes large bodies: `python -m ovserve.sandbox.bodies.worker FD SECONDS BYTES`.

It answers one call at a time, within SECONDS and BYTES (`sandbox/base.py`). The server names the function;
nothing that a client sends does. Its priority is below that of the engine and the event loop.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import traceback
from importlib import import_module

from ovserve.errors import OvserveError
from ovserve.llm.grammar.budget import in_all
from ovserve.sandbox.base import answer_all
from ovserve.sandbox.bodies.messages import Answer, Body, Broken, Call, Raised, Returned

NICENESS = 5


def answer(call: Call) -> Answer:
    try:
        return Returned(_call(call))
    except OvserveError as error:
        error.__cause__ = error.__context__ = None
        return Raised(pickle.dumps(error))
    except MemoryError:
        return Broken(True, "it needs too much memory")
    except Exception:  # noqa: BLE001 - a border between processes: the server logs it and raises Internal
        return Broken(False, traceback.format_exc())


def _call(call: Call) -> bytes:
    module, _, name = call.function.partition(":")
    function = getattr(import_module(module), name)
    arguments = [call.body if a is Body.HERE else a for a in pickle.loads(call.arguments)]
    with in_all():
        return pickle.dumps(function(*arguments), pickle.HIGHEST_PROTOCOL)


def main(argv: list[str]) -> int:
    os.nice(NICENESS)
    gc.disable()  # a call's objects die with it, without cycles worth a scan of a million values
    return answer_all(argv, Call, lambda question: [answer(question)], "body process")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
