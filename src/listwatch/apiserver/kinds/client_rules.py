"""The rules of webhook clients: addresses, and versions of reviews.

They are those of `apiserver/pkg/util/webhook` and of the validation of both kinds of webhooks.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from listwatch.schema.causes import Cause, invalid_value, required
from listwatch.selector import subdomain_problems

View = Mapping[str, Any]

REVIEW_VERSIONS = ("v1", "v1beta1")
_FORM = "; desired format: https://host[/path]"
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_WORDS = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)


def default_client(config: Any) -> None:
    """Set the default port of a webhook's service."""
    service = (config or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def client_causes(config: View, path: str) -> list[Cause]:
    """Return the violations of a webhook's `clientConfig`."""
    url, service = config.get("url"), config.get("service")
    if (url is None) is (service is None):
        return [required(path, "exactly one of url or service is required")]
    if url is not None:
        return _url_causes(url, f"{path}.url")
    return _service_causes(service or {}, f"{path}.service")


def _url_causes(url: str, path: str) -> list[Cause]:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        return [required(path, f"url must be a valid URL: {error}{_FORM}")]
    causes = []
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme != "https":
        why = f"'https' is the only allowed URL scheme{_FORM}"
        causes.append(invalid_value(path, parts.scheme, why))
    if not host:
        causes.append(invalid_value(path, host, f"host must be specified{_FORM}"))
    for value, what in (
        (user, "user information is"),
        (parts.fragment, "fragments are"),
        (parts.query, "query parameters are"),
    ):
        if value:
            causes.append(invalid_value(path, value, f"{what} not permitted in the URL"))
    return causes


def _service_causes(service: View, path: str) -> list[Cause]:
    # a real server swaps the two, and so names the wrong field
    swapped = (("name", "namespace"), ("namespace", "name"))
    causes = [required(f"{path}.{named}") for named, key in swapped if not service.get(key)]
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        why = "port is not valid: must be between 1 and 65535, inclusive"
        causes.append(invalid_value(f"{path}.port", port, why))
    return causes + _path_causes(service.get("path") or "/", f"{path}.path")


def _path_causes(text: str, path: str) -> list[Cause]:
    if text == "/":
        return []
    if text == "//":
        return [invalid_value(path, text, "segment[0] may not be empty")]
    causes = []
    if not text.startswith("/"):
        causes.append(invalid_value(path, text, "must start with a '/'"))
    for index, step in enumerate(text[1:].removesuffix("/").split("/")):
        if not step:
            causes.append(invalid_value(path, text, f"segment[{index}] may not be empty"))
            continue
        causes += [
            invalid_value(path, text, f"segment[{index}]: {why}")
            for why in subdomain_problems(step)
        ]
    return causes


def review_causes(versions: Sequence[str], path: str, missing: str = "") -> list[Cause]:
    """Return the violations of the review versions that a webhook understands.

    Args:
        versions: as in `admissionReviewVersions` or `conversionReviewVersions`.
        path: their path.
        missing: the message if there are none.
    """
    if not versions:
        return [required(path, missing)]
    causes = []
    for index, version in enumerate(versions):
        where = f"{path}[{index}]"
        if version in versions[:index]:
            causes.append(invalid_value(where, version, "duplicate version"))
        elif not _LABEL.fullmatch(version):
            causes.append(invalid_value(where, version, _LABEL_WORDS))
    if not set(versions) & set(REVIEW_VERSIONS):
        why = f"must include at least one of {', '.join(REVIEW_VERSIONS)}"
        causes.append(invalid_value(path, list(versions), why))
    return causes
