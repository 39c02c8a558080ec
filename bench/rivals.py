"""One sync by a rival's client, in a separate process: `python bench/rivals.py NAME URL COUNT`.

Prints a line of JSON: the CPU seconds of the whole process until all pods are in memory, the
resident and the peak megabytes, and the version. Each does what its documentation shows for a local
copy of all pods; without a cache, it fills a dict by namespace and name.
"""

import asyncio
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: The requirements that `bench/sync.py` installs, in a separate virtual environment.
REQUIREMENTS = (
    "kubernetes==37.0.2",
    "kubernetes-asyncio==36.1.0",
    "kr8s==0.20.15",
    "lightkube==1.0.1",
    "lightkube-models==1.34.0.8",
    "kopf==1.45.2",
)


HERE = Path(__file__).parent


def rivals_python() -> str:
    """Return the interpreter of the rivals' environment, created if missing."""
    venv = HERE / ".venv-rivals"
    if not (venv / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([str(word) for word in (*pip, *REQUIREMENTS)], check=True)
        (venv / "ready").touch()
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


@contextmanager
def kubeconfig(url: str) -> Iterator[str]:
    """Write a kubeconfig for a server without authentication and yield its path."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(json.dumps(config), encoding="utf-8")
        os.environ["KUBECONFIG"] = str(path)
        yield str(path)


def official(url: str, count: int) -> int:
    """Sync with the official client's SharedInformer."""
    from kubernetes import client, config  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from kubernetes.informer import SharedInformer  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    with kubeconfig(url) as path:
        config.load_kube_config(path)
        informer = SharedInformer(client.CoreV1Api().list_pod_for_all_namespaces)
        informer.start()
        while len(informer.cache.list()) < count:
            time.sleep(0.05)
        return len(informer.cache.list())


async def official_asyncio(url: str, count: int) -> int:
    """List with kubernetes-asyncio into a dict; it has no cache."""
    from kubernetes_asyncio import client, config  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    with kubeconfig(url) as path:
        await config.load_kube_config(path)
        async with client.ApiClient() as api:
            pods = await client.CoreV1Api(api).list_pod_for_all_namespaces()
            kept = {(p.metadata.namespace, p.metadata.name): p for p in pods.items}
            KEPT.append(kept)
            return min(len(kept), count)


async def kr8s_list(url: str, count: int) -> int:
    """List with kr8s into a dict; it has no cache."""
    import kr8s  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    with kubeconfig(url) as path:
        api = await kr8s.asyncio.api(kubeconfig=path)
        kept = {
            (pod.namespace, pod.name): pod
            async for pod in kr8s.asyncio.get("pods", namespace=kr8s.ALL, api=api)
        }
        KEPT.append(kept)
        return min(len(kept), count)


def lightkube_list(url: str, count: int) -> int:
    """List with lightkube into a dict; it has no cache."""
    from lightkube import Client, KubeConfig  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment
    from lightkube.resources.core_v1 import Pod  # type: ignore[import-not-found]  # noqa: PLC0415 - as above

    with kubeconfig(url) as path:
        client = Client(config=KubeConfig.from_file(path))
        kept = {(p.metadata.namespace, p.metadata.name): p for p in client.list(Pod, namespace="*")}
        KEPT.append(kept)
        return min(len(kept), count)


async def kopf_index(url: str, count: int) -> int:
    """Keep all pods in a kopf index."""
    import kopf  # type: ignore[import-not-found]  # noqa: PLC0415 - the rival's environment

    registry = kopf.OperatorRegistry()
    seen: dict[Any, Any] = {}
    done = asyncio.Event()

    # Its own log-in needs the official client, or a cluster around it.
    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]  # the rival has no types here
    def log_in(**_: object) -> Any:
        return kopf.ConnectionInfo(server=url)

    @kopf.index("", "v1", "pods", registry=registry)  # type: ignore[untyped-decorator]  # the rival has no types here
    def pods(namespace: str, name: str, body: Any, **_: object) -> dict[Any, Any]:
        seen[namespace, name] = dict(body)
        if len(seen) >= count:
            done.set()
        return {(namespace, name): seen[namespace, name]}

    operator = asyncio.ensure_future(
        kopf.operator(registry=registry, clusterwide=True, standalone=True)
    )
    finished = asyncio.ensure_future(done.wait())
    await asyncio.wait({operator, finished}, return_when="FIRST_COMPLETED")
    if operator.done():
        operator.result()
    KEPT.extend((seen, operator))
    return len(seen)


KEPT: list[object] = []
RIVALS: dict[str, tuple[str, Callable[[str, int], int | Awaitable[int]]]] = {
    "kubernetes": ("kubernetes", official),
    "kubernetes-asyncio": ("kubernetes-asyncio", official_asyncio),
    "kr8s": ("kr8s", kr8s_list),
    "lightkube": ("lightkube", lightkube_list),
    "kopf": ("kopf", kopf_index),
}


async def _await(result: Awaitable[int]) -> int:
    return await result


def main() -> None:
    """Run one rival and print its figures."""
    name, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    package, run = RIVALS[name]
    result = run(url, count)
    got = result if isinstance(result, int) else asyncio.run(_await(result))
    figures = {
        "name": name,
        "version": importlib.metadata.version(package),
        "objects": got,
        "cpu": round(cpu_seconds(), 3),
        **{key: round(value, 1) for key, value in memory().items()},
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)  # a rival's threads would keep watching


if __name__ == "__main__":
    main()
