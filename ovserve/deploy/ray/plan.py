"""The options of a deployment on Ray Serve, computed without Ray, and the file that `serve deploy` reads."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from ovserve.errors import InvalidArgument

IMPORT_PATH = "ovserve.deploy.ray.app:build"
ROUTER = "router"
PYTHON, HAPROXY = "python", "haproxy"
SESSION, NONE = "session", "none"
# By affinity: a proxy of Serve keeps the request router that a deployment of a name had first, even when the
# deployment is deleted and made again (Ray 2.60, AsyncioRouter.request_router).
DEPLOYMENTS = {SESSION: "server", NONE: "server_without_affinity"}
SESSION_HEADER = b"x-session-id"  # Serve's; its RAY_SERVE_SESSION_ID_HEADER_KEY names another
SESSION_ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
POLICY = "ovserve.deploy.ray.merged:ByQueue"
UNLIMITED_REQUESTS = 100_000  # requests in a replica, where the server's own queue is the limit
STARTED_BESIDE = 4  # deployments of fewer replicas start all their new replicas before the old ones end
BUSY = "busy"  # in what a replica reports to routers: its requests
HEALTH_SECONDS = 2.0

# What every node's environment needs before `ray start`, by data plane.
_BOTH = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
    # The controller kills a proxy that is not ready after three times this time. With 5 s, the default, it
    # kills each one that starts on a node whose CPUs compute.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    # A proxy asks a replica for its queue before it sends a request. On a node whose CPUs compute, 0.1 s, the
    # default, is often not enough, and then the request goes to a replica that does not know its session.
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "1",
    "RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "5",
}
_OF_HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    # The lines after the first are HAProxy's configuration. With Ray's `option splice-request`, HAProxy 2.8
    # does not see that a client leaves whose small body came after its headers: the answer is computed to its
    # end. And it sends a request to another replica only if the whole body had come when it chose the first.
    "RAY_SERVE_HAPROXY_RETRY_ON": (
        "conn-failure empty-response\nno option splice-request\noption http-buffer-request"
    ),
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
ENVIRONMENT = {PYTHON: _BOTH, HAPROXY: _BOTH | _OF_HAPROXY}


@dataclass(frozen=True)
class Plan:
    """The way in which a deployment runs. `options` are those of `ovserve serve`, as text; `max_num_seqs` is
    the number of requests that an engine computes at the same time."""

    user_config: dict[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = "ovserve"
    min_replicas: int = 1
    max_replicas: int = 1
    cpus: float = 1.0
    max_ongoing: int = 0  # 0: from max_num_seqs
    max_num_seqs: int = 32
    max_queue: int = 256
    affinity: str = SESSION
    data_plane: str = PYTHON
    upscale_delay: float = 5.0
    downscale_delay: float = 300.0
    load_timeout: float = 300.0
    request_timeout: float = 3600.0
    runtime_env: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.min_replicas <= self.max_replicas:
            flags = f"--min_replicas {self.min_replicas} and --max_replicas {self.max_replicas}"
            raise InvalidArgument(f"expected 1 <= min_replicas <= max_replicas, got {flags}")

    @property
    def ongoing(self) -> int:
        """Return the number of requests that a replica gets. What exceeds it waits in Serve's queue."""
        return UNLIMITED_REQUESTS if self.data_plane == HAPROXY else self.max_ongoing or self.max_num_seqs

    @property
    def target(self) -> float:
        """Return the number of requests per replica that scaling aims at."""
        return max(1.0, 0.75 * (self.max_ongoing or self.max_num_seqs))

    @property
    def args(self) -> dict[str, Any]:
        """Return the arguments of the application. A change of these replaces the replicas."""
        return {
            "options": dict(sorted(self.options.items())),
            "keys": bool(self.user_config.get("keys")),
            "affinity": self.affinity,
            "data_plane": self.data_plane,
            "max_num_seqs": self.max_num_seqs,
            "load_timeout": self.load_timeout,
            "shutdown_timeout": self.request_timeout,
        }

    @property
    def version(self) -> str:
        """Return a digest of what makes replicas differ, so that only a change of it replaces them."""
        text = json.dumps([self.args, self.cpus, dict(self.runtime_env)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def deployment(self) -> dict[str, Any]:
        """Return the options of the deployment, with the names that Serve has for them."""
        deployment: dict[str, Any] = {
            "max_ongoing_requests": self.ongoing,
            "max_queued_requests": self.max_queue,
            "backpressure_config": {"status_code": 503, "retry_after_s": 2.0},
            "graceful_shutdown_timeout_s": self.request_timeout,
            "graceful_shutdown_wait_loop_s": 1.0,
            "health_check_period_s": HEALTH_SECONDS,
            "health_check_timeout_s": 30.0,
            "ray_actor_options": {"num_cpus": self.cpus},
            "max_surge_percent": 100 if self.max_replicas < STARTED_BESIDE else 25,
            "user_config": self.user_config,
        }
        if self.runtime_env:
            deployment["ray_actor_options"]["runtime_env"] = dict(self.runtime_env)
        if self.min_replicas == self.max_replicas:
            deployment["num_replicas"] = self.min_replicas
        else:
            deployment["autoscaling_config"] = self._autoscaling()
        if self.affinity == SESSION:
            deployment["request_router_config"] = {
                "request_router_class": SESSION_ROUTER,
                "request_routing_stats_period_s": 1.0,
            }
        return deployment

    def _autoscaling(self) -> dict[str, Any]:
        look_back = max(1.0, min(10.0, self.upscale_delay))
        config: dict[str, Any] = {
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "target_ongoing_requests": self.target,
            "upscale_delay_s": self.upscale_delay,
            "downscale_delay_s": self.downscale_delay,
            "look_back_period_s": look_back,
            # Ray warns unless it is the smaller one: with the default of 10 s a period can have no value.
            "metrics_interval_s": look_back / 2,
        }
        if self.data_plane == HAPROXY:
            config["policy"] = {
                "policy_function": POLICY,
                "policy_kwargs": {"target_requests": self.target},
            }
        return config

    def document(self, host: str, port: int) -> dict[str, Any]:
        """Return the configuration that `serve deploy` takes."""
        application = {
            "name": self.name,
            "route_prefix": "/",
            "import_path": IMPORT_PATH,
            "args": self.args,
            "deployments": [{"name": DEPLOYMENTS[self.affinity], **self.deployment()}],
        }
        return {
            "proxy_location": "EveryNode",
            "http_options": {"host": host, "port": port},
            "applications": [application],
        }


def to_yaml(document: Mapping[str, Any], data_plane: str) -> str:
    """Return a configuration as YAML to edit: graphs are blocks of lines."""
    variables = ENVIRONMENT[data_plane].items()
    needed = " ".join(f"{k}={_shell(v)}" for k, v in variables)
    head = (
        "# Written by `ovserve deploy ray --write_yaml`; for `serve deploy FILE` and `serve run FILE`.\n"
        f"# Every node's environment before `ray start`: {needed}\n"
        "# A change of user_config reloads graphs in the running replicas; one of args replaces replicas.\n"
    )
    return head + yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _shell(value: str) -> str:
    """Return a value as a word of bash, on one line."""
    return "$'" + value.replace("\n", "\\n") + "'" if "\n" in value else shlex.quote(value)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A text that a block cannot hold, such as one with trailing blanks, gets quotes from the library.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
