"""Who may use the server and how much of it: keys, what each allows, and the call that is under way.

The fronts (`http/`, `grpc_api/`) find out who calls and set the call; `serving/` asks it for models, slots and
admin rights; the executor calculators tell it the tokens. The rules are here, once, for all fronts.
"""

from ovserve.access.caller import ANYONE, NOBODY, Caller, Rights
from ovserve.access.ended import AccessLog
from ovserve.access.guard import Guard, presented_key
from ovserve.access.keys import load_keys
from ovserve.access.request_context import RequestContext, as_system, calling, current_request

__all__ = [
    "ANYONE",
    "NOBODY",
    "AccessLog",
    "Caller",
    "Guard",
    "RequestContext",
    "Rights",
    "as_system",
    "calling",
    "current_request",
    "load_keys",
    "presented_key",
]
