"""CertificateSigningRequest."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from listwatch.apiserver.kinds.cells import NONE, at, duration, field
from listwatch.apiserver.kinds.kind import Kind, Object, View, paths
from listwatch.schema.causes import Cause, invalid_value, required
from listwatch.selector import subdomain_problems


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
    if not spec.get("usages"):
        causes.append(required("spec.usages"))
    signer = spec.get("signerName", "")
    host, _, path = signer.partition("/")
    if not signer:
        causes.append(required("spec.signerName"))
    elif not path:
        why = 'must be a fully qualified domain and path of the form "example.com/signer-name"'
        causes.append(invalid_value("spec.signerName", signer, why))
    else:
        causes += [invalid_value("spec.signerName", host, why) for why in subdomain_problems(host)]
    seconds = spec.get("expirationSeconds")
    if isinstance(seconds, int) and seconds < _SHORTEST_CERTIFICATE:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        causes.append(invalid_value("spec.expirationSeconds", seconds, why))
    return causes


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
