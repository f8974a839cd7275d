"""API keys of two users and of an admin."""

from pellucid.server.api_keys import ApiKeys, Caller, Role

USER_KEY, OTHER_KEY, ADMIN_KEY = (
    "user-key-0123456789",
    "other-key-0123456789",
    "admin-key-0123456789",
)
KEYS = ApiKeys(
    [
        (USER_KEY, Caller("user", Role.INFERENCE)),
        (OTHER_KEY, Caller("other", Role.INFERENCE)),
        (ADMIN_KEY, Caller("ops", Role.ADMIN)),
    ]
)
