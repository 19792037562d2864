"""Hides secrets wherever settings are written, and resolves references to secrets at the last moment.

In `env_kwargs` and the `kwargs` of wrappers, a value may be a reference: `${env:NAME}` (an environment variable) or
`${prefect:BLOCK}` (a Prefect secret block). References are safe to write, log and commit. This module looks up
environment variables; flows, which know Prefect's blocks, register a lookup for those.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from rl_training.errors import ConfigError

REDACTED = "***"
"""The text that replaces a secret."""

REFERENCE = re.compile(r"\$\{([A-Za-z]+):([^${}]+)\}")
KINDS = ("env", "prefect")

MIN_HIDDEN_CHARACTERS = 4
"""The length of the shortest secret that is hidden in text; shorter ones occur in ordinary words."""

SecretResolver = Callable[[str, str], str]
"""A function of the kind (one of `KINDS`) and name of a reference that returns the secret."""

_lookups: dict[str, Callable[[str], str]] = {}
"""The registered lookups by kind, besides environment variables."""

_T = TypeVar("_T")

_SECRET_WORDS = frozenset({
    "token", "password", "passwd", "passphrase", "pwd", "secret", "credential", "apikey", "auth", "authorization",
    "bearer", "webhook", "cookie",
})  # fmt: skip
_SECRET_PAIRS = ("api_key", "access_key", "private_key", "secret_key", "account_key", "encryption_key", "ssh_key")
# Each pattern takes time linear in the text: no part of it can start matching in many places and run far.
_URL_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?P<login>[^\s/@]+)@")
_ENTRY = re.compile(
    r"""(?P<name>[{,]\s*["']?(?P<key>[\w.-]+)["']?\s*:\s*)(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|\$\{[^${}]*\}|[^\s,}\]]+)"""
)
_URL_QUERY = re.compile(r"(?P<name>[?&;](?P<key>[^=&;?\s]+)=)(?P<value>[^&;#\s]+)")


def is_secret_name(key: str) -> bool:
    """Returns whether the name of a key says that its value is a secret."""
    return _secret_name(key) is not None


@lru_cache(maxsize=1000)  # settings have the same few keys again and again
def _secret_name(key: str) -> str | None:
    """Returns "one" or "many" for the name of a secret (`token`, `tokens`), else None."""
    words = re.findall(r"[a-z]+|[0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key).lower())
    joined = "_" + "_".join(words) + "_"
    singular = any(word in _SECRET_WORDS for word in words) or any(f"_{pair}_" in joined for pair in _SECRET_PAIRS)
    if singular:
        return "one"
    plural = any(word[:-1] in _SECRET_WORDS for word in words if word.endswith("s"))
    return "many" if plural or any(f"_{pair}s_" in joined for pair in _SECRET_PAIRS) else None


def redact(value: _T, *, references: bool = False) -> _T:
    """Returns a copy of settings (mappings, lists and values) with every secret hidden.

    A value is a secret if its key, or a key above it, says so; the login in an address is a secret too. Booleans and
    None never are, nor is a number under a plural key (`max_tokens: 100`).

    Args:
        value: The settings.
        references: Whether to hide references to secrets too.
    """
    return _redact(value, None, references)  # type: ignore[no-any-return]


def _redact(value: Any, secret: str | None, references: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _redact(item, secret or _secret_name(str(key)), references) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_redact(item, secret, references) for item in value])
    if value is None or isinstance(value, bool) or value == "":
        return value
    if secret and not (secret == "many" and not isinstance(value, str)):
        whole = isinstance(value, str) and REFERENCE.fullmatch(value)
        return value if whole and not references else REDACTED
    return redact_text(value) if isinstance(value, str) else value


def holds_secret(settings: Mapping[str, Any]) -> bool:
    """Returns whether settings hold a secret or a reference to one."""
    return redact(settings) != settings or any(True for _ in _find_references(settings))


def redact_text(text: str) -> str:
    """Returns text (a message, a command's argument) with the secrets in its addresses and mappings hidden."""

    def login(match: re.Match[str]) -> str:
        user, separator, password = match["login"].partition(":")
        if separator and not REFERENCE.fullmatch(password):
            password = REDACTED
        return f"{match['scheme']}{user}{separator}{password}@"

    def named(match: re.Match[str]) -> str:
        hidden = is_secret_name(match["key"]) and not REFERENCE.fullmatch(match["value"])
        return match["name"] + (REDACTED if hidden else match["value"])

    return _ENTRY.sub(named, _URL_QUERY.sub(named, _URL_LOGIN.sub(login, text)))


def collect_secret_values(settings: Mapping[str, Any], resolver: SecretResolver | None = None) -> frozenset[str]:
    """Returns the secrets in keyword arguments as text: the values that `redact` hides, and those of references.

    Args:
        settings: Keyword arguments from the settings, with references.
        resolver: Finds a secret; `resolve_reference` by default. References that it can't resolve are left out.
    """
    return frozenset(_collect_secret_values(settings, None, resolver or resolve_reference))


def _collect_secret_values(value: Any, secret: str | None, resolver: SecretResolver) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _collect_secret_values(item, secret or _secret_name(str(key)), resolver)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _collect_secret_values(item, secret, resolver)
    elif isinstance(value, str):
        parts = {match[0]: _resolve_or_empty(match, resolver) for match in REFERENCE.finditer(value)}
        yield from filter(None, parts.values())
        whole = REFERENCE.sub(lambda match: parts[match[0]], value)
        if secret:
            yield whole
        yield from (match["login"].partition(":")[2] for match in _URL_LOGIN.finditer(whole))
        yield from (match["value"] for match in _URL_QUERY.finditer(whole) if is_secret_name(match["key"]))
    elif secret == "one" and value is not None and not isinstance(value, bool):
        yield str(value)


def _resolve_or_empty(reference: re.Match[str], resolver: SecretResolver) -> str:
    try:
        return resolver(reference[1], reference[2])
    except (ConfigError, OSError):
        return ""


def hide(text: str, secrets: Collection[str]) -> str:
    """Returns text with the given secrets hidden, also if they are quoted or joined to one line.

    Args:
        text: The text.
        secrets: Secrets of `collect_secret_values`; those shorter than `MIN_HIDDEN_CHARACTERS` stay visible.
    """
    forms = {
        form
        for secret in secrets
        for form in (secret, " ".join(secret.split()), repr(secret)[1:-1], quote(secret, safe=""))
        if len(form) >= MIN_HIDDEN_CHARACTERS
    }
    for form in sorted(forms, key=len, reverse=True):  # a secret may contain another
        text = text.replace(form, REDACTED)
    return text


def register_lookup(kind: str, look_up: Callable[[str], str]) -> None:
    """Registers the lookup of one kind of references, for this process and the workers of its environments.

    Args:
        kind: One of `KINDS`.
        look_up: Returns the secret of a name. Raises ConfigError if there is none, and OSError if it can't be reached.
    """
    _lookups[kind] = look_up


def register_secrets(secrets: Mapping[str, Mapping[str, str]]) -> None:
    """Registers lookups in what `collect_secrets` has returned in another process."""
    for kind, found in secrets.items():
        register_lookup(kind, found.__getitem__)


def collect_secrets(settings: Mapping[str, Any], *, inherited: bool = True) -> dict[str, dict[str, str]]:
    """Returns the secrets that another process needs to resolve the references in settings, by kind and name.

    Send the result, but never write it.

    Args:
        settings: The settings.
        inherited: Whether the other process has the environment variables of this one, as a child process has; they
            are left out then.

    Raises:
        ConfigError: A secret can't be found.
    """
    found: dict[str, dict[str, str]] = {}
    for kind, name in _find_references(settings):
        if kind in _lookups or not inherited:
            found.setdefault(kind, {})[name] = resolve_reference(kind, name)
    return found


def _find_references(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _find_references(item)
    elif isinstance(value, str):
        yield from ((match[1], match[2]) for match in REFERENCE.finditer(value))


def resolve_reference(kind: str, name: str) -> str:
    """Returns the secret of a reference, as this process can look it up.

    Raises:
        ConfigError: There is no such secret, or only a flow can look up this kind.
    """
    if kind in _lookups:
        return _lookups[kind](name)
    if kind != "env":
        raise ConfigError(f"${{{kind}:{name}}} is resolved inside a Prefect flow only; here use ${{env:NAME}}")
    if name not in os.environ:
        raise ConfigError(f"${{env:{name}}}: the environment variable {name} is not set")
    return os.environ[name]


def resolve_secrets(
    mapping: Mapping[str, Any], resolver: SecretResolver = resolve_reference, *, path: str = "env_kwargs"
) -> dict[str, Any]:
    """Returns a copy of `mapping` with every reference replaced by its secret. Never write the result.

    Args:
        mapping: Keyword arguments from the settings.
        resolver: Finds a secret.
        path: The key of the mapping in the settings, for messages.

    Raises:
        ConfigError: A secret can't be found, or it was hidden when these settings were written.
    """
    return {key: _resolve(item, resolver, f"{path}.{key}") for key, item in mapping.items()}


def _resolve(value: Any, resolver: SecretResolver, path: str) -> Any:
    if isinstance(value, Mapping):
        return resolve_secrets(value, resolver, path=path)
    if isinstance(value, list | tuple):
        return [_resolve(item, resolver, f"{path}.{i}") for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    if value == REDACTED or f":{REDACTED}@" in value or f"={REDACTED}" in value:
        raise ConfigError(
            f"{path}: the secret was hidden when these settings were written; set it again as a reference, "
            f"for example --set '{path}=${{env:NAME}}'"
        )
    try:
        return REFERENCE.sub(lambda match: resolver(match[1], match[2]), value)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
