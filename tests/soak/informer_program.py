"""Write every change that a shared informer delivers to a file, until killed.

On SIGUSR1, write the content of its cache to another file.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

from listwatch import Client, Object, SharedInformer, Updated
from listwatch.client.config import Config


def number(obj: object) -> str:
    """Return the number of an object; "0" for a tombstone."""
    return str(obj["data"]["number"]) if isinstance(obj, Object) else "0"


async def main(url: str, story: Path) -> None:
    """Write changes until the process is killed."""
    async with Client(Config(server=url)) as client:
        informer = SharedInformer(client.list_watch("configmaps"))

        def dump() -> None:
            cached = {obj.key: int(number(obj)) for obj in informer.lister.list()}
            new = story.with_suffix(".new")
            new.write_text(json.dumps(cached))
            new.replace(story.with_suffix(".cache"))

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, dump)
        async with informer:
            with story.open("a", buffering=1) as file:
                async for change in informer.changes():
                    obj = change.new if isinstance(change, Updated) else change.obj
                    print(type(change).__name__, change.key, number(obj), file=file)


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
