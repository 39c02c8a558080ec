"""The configurations of admission webhooks and policies."""

from collections.abc import Mapping

from listwatch.apiserver.kinds.admission_rules import condition_causes, rule_causes
from listwatch.apiserver.kinds.cells import count
from listwatch.apiserver.kinds.client_rules import client_causes, default_client, review_causes
from listwatch.apiserver.kinds.kind import Kind, Object, View
from listwatch.apiserver.kinds.rules import enumeration, label_selector
from listwatch.schema.causes import Cause, duplicate, invalid_value, not_supported, required
from listwatch.selector import subdomain_problems

_HOOK = "admissionregistration.v1.ValidatingWebhook"
_REINVOCATIONS = ("IfNeeded", "Never")


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
        default_client(hook.get("clientConfig"))


def _default_mutating_webhooks(obj: Object) -> None:
    _default_webhooks(obj)
    for hook in obj.get("webhooks") or ():
        hook.setdefault("reinvocationPolicy", "Never")


def _check_webhooks(obj: View) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks") or ()):
        here = f"webhooks[{index}]"
        name = hook.get("name", "")
        causes += _webhook_causes(hook, here)
        if name and name in names:
            causes.append(duplicate(f"{here}.name", name))
        names.add(name)
    return causes


def _webhook_causes(hook: View, here: str) -> list[Cause]:
    causes: list[Cause] = []
    name = hook.get("name", "")
    if not name:
        causes.append(required(f"{here}.name"))
    elif problems := subdomain_problems(name):
        causes.append(invalid_value(f"{here}.name", name, ",".join(problems)))
    elif name.count(".") < 2:
        why = "should be a domain with at least three segments separated by dots"
        causes.append(invalid_value(f"{here}.name", name, why))
    versions = hook.get("admissionReviewVersions") or ()
    where, missing = f"{here}.admissionReviewVersions", "must specify one of v1, v1beta1"
    causes += review_causes(versions, where, missing)
    for place, rule in enumerate(hook.get("rules") or ()):
        causes += rule_causes(rule, f"{here}.rules[{place}]")
    causes += enumeration(hook, here, "failurePolicy", _HOOK)
    causes += enumeration(hook, here, "matchPolicy", _HOOK)
    if hook.get("sideEffects") is None:
        why = "must specify one of None, NoneOnDryRun"
        causes.append(required(f"{here}.sideEffects", why))
    else:
        causes += enumeration(hook, here, "sideEffects", _HOOK, but=("Some", "Unknown"))
    seconds = hook.get("timeoutSeconds")
    if isinstance(seconds, int) and not 1 <= seconds <= 30:
        why = "the timeout value must be between 1 and 30 seconds"
        causes.append(invalid_value(f"{here}.timeoutSeconds", seconds, why))
    for key in ("namespaceSelector", "objectSelector"):
        causes += label_selector(hook.get(key), f"{here}.{key}")
    causes += client_causes(hook.get("clientConfig") or {}, f"{here}.clientConfig")
    causes += condition_causes(hook.get("matchConditions"), f"{here}.matchConditions")
    again = hook.get("reinvocationPolicy")
    if again not in {None, *_REINVOCATIONS}:
        causes.append(not_supported(f"{here}.reinvocationPolicy", again, _REINVOCATIONS))
    return causes


#: The kinds of this family, by group and plural name.
KINDS: Mapping[str, Kind] = {
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_mutating_webhooks,
        rule=_check_webhooks,
        compiles=True,
        cells={"Webhooks": count("webhooks")},
    ),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": Kind(
        generation=True,
        unconditional_update=False,
        defaults=_default_webhooks,
        rule=_check_webhooks,
        compiles=True,
        cells={"Webhooks": count("webhooks")},
    ),
}
