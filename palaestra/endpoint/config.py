"""Settings of an endpoint: its address, limits and prices; and its key, which is shown nowhere."""

import os
import re
from dataclasses import dataclass, field
from math import isfinite
from urllib.parse import urlsplit

from palaestra.endpoint.reply import Totals
from palaestra.errors import ConfigError, SpendingLimit, UsageError

PATH = "/chat/completions"
DEFAULT_KEY = "OPENAI_API_KEY"
_SECRET_LETTERS = 8
"""Minimum length of a key that is hidden in texts. Shorter keys ("EMPTY", "x") are placeholders that occur in words."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The key of a server, and the limits and prices of its use."""

    api_key_env: str = DEFAULT_KEY
    """Environment variable that holds the server's key, which is never shown or recorded; no key is sent where it is
    empty or unset."""
    max_concurrent: int = 32
    """Maximum number of requests sent at once. It adapts to a server that refuses some for their rate (429)."""
    requests_per_minute: float | None = None
    """Maximum requests in any minute; no limit if it is None."""
    tokens_per_minute: float | None = None
    """Maximum tokens of prompts and answers in any minute; an answer counts as `max_tokens` until its size is known. No
    limit if it is None."""
    price_in: float = 0.0
    """Price of a million prompt tokens, in any currency, to add up the cost."""
    price_out: float = 0.0
    """Price of a million completion tokens."""
    max_cost: float | None = None
    """Cost, by the two prices, at which no further request is sent; those under way are paid too. None: no limit."""
    max_tokens: int | None = None
    """Tokens of prompts and answers, of all requests together, at which no further request is sent. None: no limit."""
    timeout: float = 600.0
    """Seconds for one try, to the last byte of its answer."""
    patience: float = 120.0
    """Seconds after the first failure of a request for which it is repeated; then its episode is BROKEN."""

    def refuse_spent(self, totals: Totals) -> None:
        """Raise `SpendingLimit` if the requests so far have reached the most that they may cost."""
        tokens = totals.prompt_tokens + totals.completion_tokens
        if self.max_cost is not None and totals.cost >= self.max_cost:
            raise SpendingLimit(f"the server has cost {totals.cost:.2f}; max_cost is {self.max_cost:g}")
        if self.max_tokens is not None and tokens >= self.max_tokens:
            raise SpendingLimit(f"the server has used {tokens:,} tokens; max_tokens is {self.max_tokens:,}")


@dataclass(frozen=True, slots=True)
class EndpointConfig(RequestLimits):
    """Address of a served model, and the limits and prices of its use."""

    base_url: str
    """URL of the server without `/chat/completions`, such as `http://localhost:8000/v1`."""
    model: str
    """Name of the model at the server."""
    connect_timeout: float = field(default=10.0, kw_only=True)
    """Seconds to reach the server."""
    backoff: float = field(default=0.5, kw_only=True)
    """Seconds before the second try; they double with each further one."""
    max_body_bytes: int = field(default=8 * 2**20, kw_only=True)
    """Maximum bytes of an answer; a larger one is not read."""

    def __post_init__(self) -> None:
        for name, minimum in (("timeout", 0.0), ("connect_timeout", 0.0), ("backoff", 0.0), ("max_concurrent", 1)):
            value = getattr(self, name)
            if not (isfinite(value) and value >= minimum and value > 0):
                raise ConfigError(f"{name} is {value}; expected {'at least 1' if minimum else 'a number above 0'}")
        for name in ("patience", "price_in", "price_out"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 or more")
        for name in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) is not None and not getattr(self, name) >= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected at least 1, or none for no limit")
        for name in ("max_cost", "max_tokens"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected more than 0, or none for no limit")
        if self.max_cost is not None and not (self.price_in or self.price_out):
            raise ConfigError("max_cost needs price_in and price_out, the prices of a million tokens")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise ConfigError(
                "api_key_env is not the name of an environment variable; expected one such as OPENAI_API_KEY, "
                "which holds the key, never the key itself"
            )
        if not self.model:
            raise ConfigError("an endpoint needs the name of its model")
        address_of(self.base_url)


class Secret:
    """A key: sent in a header, and hidden in every text that is shown or stored."""

    __slots__ = ("_value",)

    def __init__(self, variable: str) -> None:
        value = os.environ.get(variable, "").strip() if variable else ""
        if not value and variable not in ("", DEFAULT_KEY):
            # The argument may be the key itself; it is shown only if it looks like a name.
            name = variable if variable.isupper() else "that api_key_env names"
            raise UsageError(
                f"the environment variable {name} is not set; it should hold the key "
                "(pass the name of the variable, never the key; an empty name sends none)"
            )
        if not (value.isascii() and value.isprintable()) or " " in value:
            raise UsageError(
                f"the environment variable {variable} holds blanks, line breaks or letters beyond ASCII, which no key "
                "has; set it again"
            )
        self._value = value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return "Secret(***)"

    def header(self) -> dict[str, str]:
        """Return the header that sends the key to the server."""
        return {"Authorization": f"Bearer {self._value}"} if self._value else {}

    def hide(self, text: str) -> str:
        """Return the text without the key."""
        return text.replace(self._value, "***") if len(self._value) >= _SECRET_LETTERS else text

    def hide_bytes(self, data: bytes) -> bytes:
        """Return a body without the key. Call this before the body is cut, since a part of a key is not found."""
        return data.replace(self._value.encode(), b"***") if len(self._value) >= _SECRET_LETTERS else data


def address_of(base_url: str, name: str = "base_url", example: str = "http://localhost:8000/v1") -> str:
    """Return a base URL in a normal form, without a final slash or `/chat/completions`. `name` is used in errors."""
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not (base_url.isascii() and base_url.isprintable()) or " " in base_url:
        raise ConfigError(f"{name} is {base_url.rpartition('@')[2]!r}; expected one like {example}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"{name} of {parts.hostname} has a name, password, query or fragment, which would be shown in logs; "
            f"expected one like {example}, and the key in an environment variable"
        )
    path = parts.path.rstrip("/").removesuffix(PATH).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"
