"""What every namespace gets: the default service account, and the server's CA."""

from listwatch.apiserver.workloads.observed import (
    MAPS,
    SERVICE_ACCOUNTS,
    Create,
    Object,
    Observed,
    Steps,
    Update,
    View,
)
from listwatch.apiserver.workloads.pods import is_deleting

#: The names of a namespace's initial objects, by resource.
GIVEN = {SERVICE_ACCOUNTS: "default", MAPS: "kube-root-ca.crt"}
_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal "
    "endpoints such as the internal service IP or kubernetes.default.svc. No other usage is "
    "guaranteed across distributions of Kubernetes clusters."
)


def step_namespace(observed: Observed, authority: str, namespace: View) -> Steps:
    """Create a namespace's service account and CA (in PEM), and keep the CA unchanged."""
    if is_deleting(namespace):
        return []
    home = namespace["metadata"]["name"]
    steps: Steps = []
    if observed.find(SERVICE_ACCOUNTS, home, GIVEN[SERVICE_ACCOUNTS]) is None:
        account = {"metadata": {"name": GIVEN[SERVICE_ACCOUNTS], "namespace": home}}
        steps.append(Create(SERVICE_ACCOUNTS, account))
    data = {"ca.crt": authority}
    known = observed.find(MAPS, home, GIVEN[MAPS])
    if known is None:
        annotations = {"kubernetes.io/description": _DESCRIPTION}
        metadata = {"name": GIVEN[MAPS], "namespace": home, "annotations": annotations}
        made: Object = {"metadata": metadata, "data": data}
        steps.append(Create(MAPS, made))
    elif known.get("data") != data:
        steps.append(Update(MAPS, {**known, "data": data}))
    return steps
