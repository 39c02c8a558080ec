"""CertificateSigningRequest."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import NONE, at, duration, field
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths
from listwatch.apiserver.kinds.rules import subdomain
from listwatch.schema.causes import Cause, duplicate, invalid_value, not_supported, required


def _default_with_spec_and_status(obj: Object) -> None:
    obj.setdefault("spec", {})
    obj.setdefault("status", {})


_PEM_BEGIN = b"-----BEGIN CERTIFICATE REQUEST-----"


_SHORTEST_CERTIFICATE = 600


def _check_signing_request(obj: View) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    request = spec.get("request", "")
    try:
        block = base64.b64decode(request)
    except (binascii.Error, ValueError):
        block = b""
    if _PEM_BEGIN not in block:
        why = "PEM block type must be CERTIFICATE REQUEST"
        causes.append(invalid_value("spec.request", request, why))
    usages = spec.get("usages") or []
    if not usages:
        causes.append(required("spec.usages"))
    for index, usage in enumerate(usages):
        where = f"spec.usages[{index}]"
        if usage not in _USAGES:
            causes.append(not_supported(where, usage, _USAGES))
        if usage in usages[:index]:
            causes.append(duplicate(where, usage))
    causes += _check_signer(spec.get("signerName", ""), "spec.signerName")
    seconds = spec.get("expirationSeconds")
    if isinstance(seconds, int) and seconds < _SHORTEST_CERTIFICATE:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        causes.append(invalid_value("spec.expirationSeconds", seconds, why))
    return causes


def _check_signer(signer: str, path: str) -> list[Cause]:
    if not signer:
        return [required(path)]
    host, _, name = signer.partition("/")
    if not name or "/" in name:
        why = 'must be a fully qualified domain and path of the form "example.com/signer-name"'
        return [invalid_value(path, signer, why)]
    if signer == _LEGACY:
        why = "the legacy signerName is not allowed via this API version"
        return [invalid_value(path, signer, why)]
    causes = subdomain(path, host)
    if "." not in host:
        why = "should be a domain with at least two segments separated by dots"
        causes.append(invalid_value(path, host, why))
    return causes + subdomain(path, name)


_LEGACY = "kubernetes.io/legacy-unknown"
_USAGES = (
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
)


def _certificate_condition(request: View, _: float) -> str:
    words = [each.get("type", "") for each in at(request, "status.conditions") or ()]
    if not words:
        return "Pending"
    issued = ["Issued"] if at(request, "status.certificate") else []
    return ",".join(words + issued)


def _sign(obj: Object, user: Mapping[str, Any]) -> None:
    """Set the requester of a signing request, whatever its client sent."""
    spec = obj.setdefault("spec", {})
    for key, value in user.items():
        if value:
            spec[key] = value
        else:
            spec.pop(key, None)


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "certificates.k8s.io/certificatesigningrequests": Kind(
        sign=_sign,
        fields=paths("spec.signerName"),
        defaults=_default_with_spec_and_status,
        rule=_check_signing_request,
        cells={
            "SignerName": field("spec.signerName"),
            "Requestor": field("spec.username"),
            "RequestedDuration": lambda obj, _: (
                duration(at(obj, "spec.expirationSeconds"))
                if at(obj, "spec.expirationSeconds")
                else NONE
            ),
            "Condition": _certificate_condition,
        },
    ),
}
