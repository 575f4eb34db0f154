"""One of several who want the same name, again and again, until killed; saves what it does under its token.

python contender.py SPEC NAME SEED TTL

Prints a line for each write that was refused, and for each end of a lease that it noticed.
"""

import asyncio
import random
import sys
from datetime import timedelta

import jobq
from jobq.errors import JobqError, LockLost
from jobq.lease.named import NamedLease
from jobq.settings import Settings

SETTINGS = Settings(allow_short_lease=True, kill_margin=timedelta(seconds=0.1), schedule_margin=timedelta(seconds=0.05))


async def hold(lease: NamedLease, dice: random.Random) -> None:
    """Write as often as comes to mind, then leave in one of the ways there are."""
    for number in range(dice.randrange(1, 4)):
        await lease.save(f"{lease.token} {number}")
        await asyncio.sleep(dice.choice((0.0, 0.001, 0.01, 0.1)))


async def main(spec: str, name: str, seed: int, ttl: float) -> None:
    dice = random.Random(seed)
    async with jobq.connect(spec, settings=SETTINGS) as queue:
        while True:
            lease = queue.lease(name, ttl=timedelta(seconds=ttl), holder=f"contender {seed}")
            try:
                async with lease:
                    await hold(lease, dice)
                    if dice.random() < 0.02:
                        lease.leave_to_expire()
            except LockLost:
                print("lost", lease.token, flush=True)
                # Whoever does not care for its own deadline asks the store itself, and may be right or wrong about it.
                for version in (10**9, 10**9 + 1):
                    try:
                        await queue.leases.save(lease._granted, f"{lease.token} late", version)
                    except JobqError as error:
                        print("refused", lease.token, type(error).__name__, flush=True)
                    else:
                        print("accepted", lease.token, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
