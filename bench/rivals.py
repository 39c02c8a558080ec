"""Rivals' clients, each in a separate process: `python bench/rivals.py NAME URL COUNT [OPTIONS]`.

Each follows all pods as its documentation shows, and keeps a local copy of them: with the rival's
own cache if it has one, otherwise in a dict by namespace and name. When all pods are in memory, it
prints a line of JSON: the CPU seconds of the whole process, the resident and the peak megabytes,
and the version. Options:

    --ca FILE         the CA certificate of the server
    --updates N       then wait for this many updates, and print their cost
    --ticks N         then wait for this many updates that say when they were sent, and print how
                      late each was
    --log             instead, print each event
    --token-file FILE where the token stands, which may change
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

#: The requirements that the benchmarks install, in a separate virtual environment.
REQUIREMENTS = (
    "kubernetes==37.0.2",
    "kubernetes-asyncio==36.1.0",
    "kr8s==0.20.15",
    "lightkube==1.0.1",
    "lightkube-models==1.37.0.8",
    "kopf==1.45.2",
    "kubesdk==0.3.4",
    "kubex[aiohttp,k8s-1-36]==0.1.0b3",
    "knete==0.3.0",
)
#: The annotation with the monotonic nanoseconds at which an update was sent.
SENT = "bench/sent"
HERE = Path(__file__).parent


def rivals_python() -> str:
    """Return the interpreter of the rivals' environment, created if missing or out of date."""
    venv = HERE / ".venv-rivals"
    ready, wanted = venv / "ready", "\n".join(REQUIREMENTS)
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--prefer-binary"]
        subprocess.run([str(word) for word in (*pip, *REQUIREMENTS)], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return str(venv / "bin" / "python")


def memory() -> dict[str, float]:
    """Return the resident and the peak size of this process, in millions of bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    size = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return {"rss": size["VmRSS"] * 1024 / 1e6, "peak": size["VmHWM"] * 1024 / 1e6}


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Cluster(NamedTuple):
    """Where the pods are; `authority` and `token_file` may be empty."""

    url: str
    authority: str = ""
    token_file: str = ""


class Recorder:
    """Counts the events of a client, and prints its figures at the end of each stage.

    A client calls it from one thread.
    """

    def __init__(self, version: str, count: int, updates: int, ticks: int, *, log: bool) -> None:
        self._out = sys.stdout
        self._version = version
        self._count = count
        self._updates = updates
        self._ticks = ticks
        #: Whether each event is printed.
        self.logs = log
        self._known: set[tuple[str, str]] = set()
        self._synced = False
        self._left = updates
        self._began = 0.0
        self._cpu = 0.0
        self._late: list[float] = []

    def __call__(
        self,
        change: str,
        namespace: str,
        name: str,
        version: str,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event: ADDED, MODIFIED or DELETED, of an object at a version."""
        if self.logs:
            key = f"{namespace}/{name}"
            line = json.dumps([time.monotonic(), change, key, version])
            print(line, file=self._out, flush=True)
        elif not self._synced:
            self._known.add((namespace, name))
            if len(self._known) >= self._count:
                self._synced = True
                self._tell({"cpu": cpu_seconds(), "objects": len(self._known), **memory()})
                self._begin()
                if not self._updates:
                    os._exit(0)  # a rival's threads would keep watching
        elif self._left:
            self._left -= 1
            if not self._left:
                wall = time.monotonic() - self._began
                self._tell({"cpu": cpu_seconds() - self._cpu, "wall": wall})
                self._left = 0
        else:
            sent = int((annotations or {}).get(SENT, 0))
            if sent:
                self._late.append(time.monotonic() - sent / 1e9)
            if len(self._late) >= self._ticks:
                self._tell({"late": sorted(self._late)})
                os._exit(0)

    @property
    def timed(self) -> bool:
        """Whether the annotations are needed."""
        return self._synced and not self._left

    def _begin(self) -> None:
        self._began, self._cpu = time.monotonic(), cpu_seconds()

    def _tell(self, figures: dict[str, Any]) -> None:
        line = json.dumps({"version": self._version, **figures})
        print(line, file=self._out, flush=True)


class LocalCopy:
    """The pods in a dict by namespace and name, for clients without a cache."""

    def __init__(self, tell: Recorder) -> None:
        self._tell = tell
        self._pods: dict[tuple[str, str], Any] = {}

    def put(
        self,
        change: str,
        pod: object,
        key: tuple[str, str],
        version: str,
        annotations: Mapping[str, str] | None,
    ) -> None:
        """Store an event's pod, or remove it, and record the event."""
        if change == "DELETED":
            self._pods.pop(key, None)
        else:
            self._pods[key] = pod
        self._tell(change, *key, version, annotations)


@contextmanager
def kubeconfig(cluster: Cluster) -> Iterator[str]:
    """Write a kubeconfig for a cluster and yield its path."""
    where: dict[str, Any] = {"server": cluster.url}
    if cluster.authority:
        where["certificate-authority"] = cluster.authority
    user = {"tokenFile": cluster.token_file} if cluster.token_file else {"token": "t"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": user}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(json.dumps(config), encoding="utf-8")
        os.environ["KUBECONFIG"] = str(path)
        yield str(path)


# --- Each as its documentation shows ------------------------------------------------------------


def official(cluster: Cluster, tell: Recorder) -> None:
    """Follow with the official client's SharedInformer, which has a cache."""
    from kubernetes import client, config  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from kubernetes.informer import SharedInformer  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    with kubeconfig(cluster) as path:
        config.load_kube_config(path)
        informer = SharedInformer(client.CoreV1Api().list_pod_for_all_namespaces)
        for change in ("ADDED", "MODIFIED", "DELETED"):

            def handle(pod: Any, change: str = change) -> None:
                meta = pod.metadata
                tell(change, meta.namespace, meta.name, meta.resource_version, meta.annotations)

            informer.add_event_handler(change, handle)
        informer.start()
        threading.Event().wait()


async def official_asyncio(cluster: Cluster, tell: Recorder) -> None:
    """List and watch with kubernetes-asyncio into a dict; it has no cache."""
    from kubernetes_asyncio import client, config, watch  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    copy = LocalCopy(tell)

    def put(change: str, pod: Any) -> None:
        meta = pod.metadata
        key = meta.namespace, meta.name
        copy.put(change, pod, key, meta.resource_version, meta.annotations)

    with kubeconfig(cluster) as path:
        await config.load_kube_config(path)
        async with client.ApiClient() as api:
            list_pods = client.CoreV1Api(api).list_pod_for_all_namespaces
            pods = await list_pods()
            for pod in pods.items:
                put("ADDED", pod)
            async with watch.Watch().stream(
                list_pods, resource_version=pods.metadata.resource_version
            ) as stream:
                async for event in stream:
                    put(event["type"], event["object"])


async def kr8s_watch(cluster: Cluster, tell: Recorder) -> None:
    """Watch with kr8s into a dict; it has no cache."""
    import kr8s  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    copy = LocalCopy(tell)
    with kubeconfig(cluster) as path:
        api = await kr8s.asyncio.api(kubeconfig=path)
        async for change, pod in kr8s.asyncio.watch("pods", namespace=kr8s.ALL, api=api):
            meta = pod.raw["metadata"]
            key = meta["namespace"], meta["name"]
            copy.put(change, pod, key, meta["resourceVersion"], meta.get("annotations"))


def lightkube_watch(cluster: Cluster, tell: Recorder) -> None:
    """List and watch with lightkube into a dict; it has no cache."""
    from lightkube import Client, KubeConfig  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from lightkube.resources.core_v1 import Pod  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    copy = LocalCopy(tell)

    def put(change: str, pod: Any) -> None:
        meta = pod.metadata
        key = meta.namespace, meta.name
        copy.put(change, pod, key, meta.resourceVersion, meta.annotations)

    with kubeconfig(cluster) as path:
        client = Client(config=KubeConfig.from_file(path))
        pods = client.list(Pod, namespace="*")
        for pod in pods:
            put("ADDED", pod)
        for change, pod in client.watch(Pod, namespace="*", resource_version=pods.resourceVersion):
            put(change, pod)


async def kopf_index(cluster: Cluster, tell: Recorder) -> None:
    """Keep all pods in a kopf index."""
    import kopf  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False

    # Its own log-in needs the official client, or a cluster around it.
    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]  # the rival has no types here
    def log_in(**_: object) -> Any:
        token = "t"  # noqa: S105 - no secret
        if cluster.token_file:
            token = Path(cluster.token_file).read_text(encoding="utf-8")
        return kopf.ConnectionInfo(
            server=cluster.url, ca_path=cluster.authority or None, token=token
        )

    def changed(change: str, meta: Any) -> None:
        key = meta["namespace"], meta["name"]
        tell(change, *key, meta["resourceVersion"], meta.get("annotations"))

    @kopf.index("", "v1", "pods", registry=registry)  # type: ignore[untyped-decorator]  # as above
    def pods(namespace: str, name: str, body: Any, **_: object) -> dict[Any, Any]:
        if not tell.logs:
            changed("", body["metadata"])
        return {(namespace, name): dict(body)}

    if tell.logs:  # an index is not told of deletions

        @kopf.on.event("", "v1", "pods", registry=registry)  # type: ignore[untyped-decorator]  # as above
        async def happened(event: Any, **_: object) -> None:
            changed(event["type"] or "ADDED", event["object"]["metadata"])

    await kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True)


async def kubesdk_watch(cluster: Cluster, tell: Recorder) -> None:
    """Watch with kubesdk into a dict; it has no cache."""
    from kube_models.api_v1.io.k8s.api.core.v1 import Pod  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from kubesdk import login, watch_k8s_resources  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
    from kubesdk.login import KubeConfig  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    copy = LocalCopy(tell)
    with kubeconfig(cluster) as path:
        await login(KubeConfig(path=path))
        async for event in watch_k8s_resources(Pod):
            meta, change = event.object.metadata, str(getattr(event.type, "value", event.type))
            key = meta.namespace, meta.name
            copy.put(change, event.object, key, meta.resourceVersion, meta.annotations)


async def kubex_watch(cluster: Cluster, tell: Recorder) -> None:
    """List and watch with kubex into a dict; it has no cache."""
    from kubex.api import Api  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from kubex.client import create_client  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
    from kubex.configuration import ClientConfiguration  # type: ignore[import-not-found]  # noqa: PLC0415 - as above
    from kubex.k8s.v1_36.core.v1.pod import Pod  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    copy = LocalCopy(tell)

    def put(change: str, pod: Any) -> None:
        meta = pod.metadata
        key = meta.namespace, meta.name
        copy.put(change, pod, key, meta.resource_version, meta.annotations)

    configuration = ClientConfiguration(
        url=cluster.url,
        server_ca_file=cluster.authority or None,
        insecure_skip_tls_verify=None if cluster.authority else True,
        token=None if cluster.token_file else "t",
        token_file=cluster.token_file or None,
        try_refresh_token=bool(cluster.token_file),
    )
    async with await create_client(configuration) as client:
        api = Api(Pod, client=client, namespace=None)
        pods = await api.list()
        for pod in pods.items:
            put("ADDED", pod)
        version = pods.metadata.resource_version
        async for event in api.watch(resource_version=version, request_timeout=None):
            put(event.type.value, event.object)


def knete_controller(cluster: Cluster, tell: Recorder) -> None:
    """Keep all pods in a dict, by a knete controller; it has no cache."""
    from knete import Controller, Manager  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    copy = LocalCopy(tell)

    class Pods(Controller):  # type: ignore[misc]  # the rival has no types here
        class Meta:
            resource = "v1/pods"

        def on_event(self, event_type: str, body: Any, meta: Any) -> None:
            key = meta["namespace"], meta["name"]
            copy.put(event_type, body, key, meta["resourceVersion"], meta.get("annotations"))

    token = "t"  # noqa: S105 - no secret
    if cluster.token_file:
        token = Path(cluster.token_file).read_text(encoding="utf-8")
    with redirect_stdout(sys.stderr):  # it prints there, too
        Manager(cluster.url, token, cluster.authority or None).register(Pods).start()


Follow = Callable[[Cluster, Recorder], "Awaitable[None] | None"]
RIVALS: dict[str, Follow] = {
    "kubernetes": official,
    "kubernetes-asyncio": official_asyncio,
    "kr8s": kr8s_watch,
    "lightkube": lightkube_watch,
    "kopf": kopf_index,
    "kubesdk": kubesdk_watch,
    "kubex": kubex_watch,
    "knete": knete_controller,
}


async def _await(result: Awaitable[None]) -> None:
    await result


def follow(package: str, how: Follow, arguments: list[str]) -> None:
    """Follow the pods until all that was asked for is printed; or, with --log, until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("--ca", default="")
    parser.add_argument("--token-file", default="")
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--ticks", type=int, default=0)
    parser.add_argument("--log", action="store_true")
    given = parser.parse_args(arguments)
    version = importlib.metadata.version(package)
    tell = Recorder(version, given.count, given.updates, given.ticks, log=given.log)
    result = how(Cluster(given.url, given.ca, given.token_file), tell)
    if result is not None:
        asyncio.run(_await(result))


if __name__ == "__main__":
    follow(sys.argv[1], RIVALS[sys.argv[1]], sys.argv[2:])
