import subprocess
import sys
import textwrap

import pytest

from listwatch.runtime.reaper import Reaper

SCRIPT = textwrap.dedent("""
    import asyncio, ctypes, os, subprocess, sys
    from listwatch.runtime.reaper import Reaper, _dead_children

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us

    async def main():
        reaper = Reaper(patience=0.2)
        task = asyncio.ensure_future(reaper.reap_forever())
        # Its child outlives it, and becomes ours when it dies.
        subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"], check=True)
        mine = subprocess.Popen(["sh", "-c", "exit 7"])
        reaper.ours.add(mine.pid)
        quick = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
        codes = [await quick.wait()]
        while not reaper.reaped:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        codes.append(mine.wait())
        print(reaper.reaped, codes, _dead_children())
        task.cancel()

    asyncio.run(main())
""")


async def test_a_process_that_is_not_the_first_one_reaps_nothing() -> None:
    reaper = Reaper()
    await reaper.run()
    assert reaper.reaped == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="subreapers are Linux's")
def test_orphans_are_reaped_and_the_programs_own_exit_codes_are_not_taken() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=55, check=True
    )
    assert done.stdout == "1 [3, 7] set()\n"
