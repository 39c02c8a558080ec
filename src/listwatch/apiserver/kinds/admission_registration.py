"""The configurations of admission webhooks and policies."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.cells import count
from listwatch.apiserver.kinds.kind import Kind, Object, View
from listwatch.apiserver.kinds.rules import enumeration
from listwatch.schema.causes import Cause, invalid_value, required
from listwatch.selector import subdomain_problems

_HOOK = "admissionregistration.v1.ValidatingWebhook"


def _default_webhooks(obj: Object) -> None:
    for hook in obj.get("webhooks") or ():
        for key, value in (
            ("failurePolicy", "Fail"),
            ("matchPolicy", "Equivalent"),
            ("timeoutSeconds", 10),
        ):
            hook.setdefault(key, value)
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        service = (hook.get("clientConfig") or {}).get("service")
        if service is not None:
            service.setdefault("port", 443)


def _default_mutating_webhooks(obj: Object) -> None:
    _default_webhooks(obj)
    for hook in obj.get("webhooks") or ():
        hook.setdefault("reinvocationPolicy", "Never")


def _check_webhooks(obj: View) -> list[Cause]:
    causes: list[Cause] = []
    for index, hook in enumerate(obj.get("webhooks") or ()):
        here = f"webhooks[{index}]"
        name = hook.get("name", "")
        if not name:
            causes.append(required(f"{here}.name"))
        else:
            causes += [invalid_value(f"{here}.name", name, why) for why in subdomain_problems(name)]
            if name.count(".") < 2:
                why = "should be a domain with at least three segments separated by dots"
                causes.append(invalid_value(f"{here}.name", name, why))
        if not hook.get("admissionReviewVersions"):
            why = "must specify one of v1, v1beta1"
            causes.append(required(f"{here}.admissionReviewVersions", why))
        effects = hook.get("sideEffects")
        if effects is None:
            why = "must specify one of None, NoneOnDryRun"
            causes.append(required(f"{here}.sideEffects", why))
        else:
            causes += enumeration(hook, here, "sideEffects", _HOOK, but=("Some", "Unknown"))
        causes += enumeration(hook, here, "failurePolicy", _HOOK)
        causes += enumeration(hook, here, "matchPolicy", _HOOK)
        seconds = hook.get("timeoutSeconds")
        if isinstance(seconds, int) and not 1 <= seconds <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            causes.append(invalid_value(f"{here}.timeoutSeconds", seconds, why))
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            why = "exactly one of url or service is required"
            causes.append(required(f"{here}.clientConfig", why))
    return causes


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_mutating_webhooks,
        rule=_check_webhooks,
        cells={"Webhooks": count("webhooks")},
    ),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_webhooks,
        rule=_check_webhooks,
        cells={"Webhooks": count("webhooks")},
    ),
}
