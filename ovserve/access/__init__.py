"""Access control: keys, the rights and limits of each, and the context of the request in progress.

The transports (`http/`, `grpc_api/`) authenticate the client and set the request context. `serving/` asks it
for models, slots and admin rights; calculators report tokens to it. All transports share the rules in this
package.
"""

from ovserve.access.access_log import AccessLog
from ovserve.access.caller import ANYONE, NOBODY, Caller, Rights
from ovserve.access.keys import Guard, load_keys, presented_key
from ovserve.access.request_context import (
    Answering,
    RequestContext,
    as_system,
    calling,
    current_request,
    has_begun,
)

__all__ = [
    "ANYONE",
    "NOBODY",
    "AccessLog",
    "Answering",
    "Caller",
    "Guard",
    "RequestContext",
    "Rights",
    "as_system",
    "calling",
    "current_request",
    "has_begun",
    "load_keys",
    "presented_key",
]
