"""`ovserve doctor`: what this machine offers a server, what is missing, and what will be slow.

- `finding`: one result
- `machine`: processor, memory, limits
- `software`: versions, extras, devices and their drivers
- `places`: ports and directories
"""
