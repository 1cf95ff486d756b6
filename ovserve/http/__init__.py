"""The HTTP front: routes, limits, errors to statuses, server-sent events. The only user of aiohttp."""
