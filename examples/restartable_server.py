"""An API server as a process: SIGHUP restarts it, SIGUSR1 makes it forget its history.

A restart ends all watches and refuses connections for half a second; the objects stay.
"""

import asyncio
import signal
import sys
from pathlib import Path

from listwatch.apiserver.server import APIServer


async def main(kubeconfig: Path) -> None:
    """Serve until SIGTERM; print the address at each start."""
    loop = asyncio.get_running_loop()
    restart, stop = asyncio.Event(), asyncio.Event()
    server = APIServer()

    def forget() -> None:
        server.compact()
        print("forgot", flush=True)

    loop.add_signal_handler(signal.SIGHUP, restart.set)
    loop.add_signal_handler(signal.SIGUSR1, forget)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with server, asyncio.TaskGroup() as tasks:

        async def restart_when_asked() -> None:
            while True:
                print(f"listening on {server.url}", flush=True)
                await restart.wait()
                restart.clear()
                await server.restart(downtime=0.5)

        await asyncio.to_thread(kubeconfig.write_text, server.kubeconfig())
        restarting = tasks.create_task(restart_when_asked())
        await stop.wait()
        restarting.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
