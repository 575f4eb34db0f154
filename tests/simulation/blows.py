"""The blows that strike in a run: what a fault does to one worker's machine, its processes and its network."""

import math
from collections.abc import Callable
from random import Random
from signal import SIGCONT, SIGKILL
from typing import Final

from tests.simulation.crew import MOST_DRIFT, Crew
from tests.simulation.loop import Machine, Node, StoreMachine
from tests.simulation.network import Way
from tests.simulation.world import Blow, World

THAW_SECONDS: Final = 2.5  # after a freeze: one tick to notice it and the time to deliver one kill (1.3 (11))
# At most; its watcher continues a guardian at once, and its worker after some seconds, unless they are stopped, too.
_STOPPED_SECONDS: Final = (0.2, 0.2, 2.0, 6.0)
_TROUBLE_SECONDS: Final = 5.0  # for how long afterwards a worker may still give up what it holds

BLOWS: Final[dict[str, Blow]] = {}


def _blow(kind: str) -> Callable[[Blow], Blow]:
    def register(blow: Blow) -> Blow:
        BLOWS[kind] = blow
        return blow

    return register


def _partition(crew: Crew, world: World, seconds: float, chance: Random, ways: set[Way]) -> bool:
    crew.link.blocked |= ways
    crew.link.holds = chance.random() < 0.5
    world.later(seconds, crew.link.heal)
    return True


@_blow("partition out")
def _out(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    return _partition(crew, world, seconds, chance, {"out"})


@_blow("partition in")
def _in(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    return _partition(crew, world, seconds, chance, {"in"})


@_blow("partition both")
def _both(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    return _partition(crew, world, seconds, chance, {"in", "out"})


@_blow("refuse")
def _refuse(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    crew.link.refuses = True
    crew.link.reset()
    world.later(seconds, crew.link.heal)
    return True


@_blow("reset")
def _reset(_world: World, crew: Crew, _seconds: float, _chance: Random) -> bool:
    crew.link.reset()
    return True


@_blow("broker crash")
def _broker_crash(world: World, _crew: Crew, seconds: float, _chance: Random) -> bool:
    if world.broker.is_down:
        return False
    world.broker.crash()
    for each in world.crews:
        each.link.reset()
    world.later(min(seconds, world.lease), world.broker_is_back)
    return True


@_blow("broker away")
def _broker_away(world: World, _crew: Crew, seconds: float, _chance: Random) -> bool:
    """It refuses everybody; time goes on, so leases run out while it says nothing."""
    if world.broker.is_down:
        return False
    world.broker.is_down = True
    world.later(seconds, world.broker_is_back)
    return True


@_blow("worker kill")
def _worker_kill(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    if not crew.lives or crew.stands_still:
        return False
    node, guardian = crew.node, crew.guardian
    node.kill()
    guardian.worker_is_gone(SIGKILL)
    world.later(min(seconds, world.lease), world.start_again, crew, node)
    return True


@_blow("worker stop")
def _worker_stop(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    """SIGSTOP, and SIGCONT later: its clocks look as if they had jumped, so it may give up what it holds."""
    node = crew.node
    if not crew.lives or node.pauses:
        return False
    node.pause()
    crew.trouble_until = math.inf

    def go_on() -> None:
        node.resume()
        crew.trouble_until = world.loop.now + _TROUBLE_SECONDS

    world.later(seconds, go_on)
    return True


@_blow("holder kill")
def _holder_kill(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    if crew.holder is None or crew.holder.dead or crew.stands_still:
        return False
    crew.holder.kill()
    world.later(min(seconds, world.lease), world.contend, crew)
    return True


@_blow("holder stop")
def _holder_stop(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    holder = crew.holder
    if holder is None or holder.dead or holder.pauses:
        return False
    holder.pause()
    world.later(seconds, crew.continue_holder, holder, world.loop.now, THAW_SECONDS)
    return True


@_blow("worker term")
def _worker_term(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    """SIGTERM; for some, an interrupt that leaves no grace follows."""
    if not crew.lives:
        return False
    crew.term()
    if chance.random() < 0.2:
        world.later(min(seconds, 3.0), crew.hurry, crew.node)
    return True


@_blow("guardian kill")
def _guardian_kill(_world: World, crew: Crew, _seconds: float, _chance: Random) -> bool:
    if not crew.lives or crew.stands_still:
        return False
    crew.asked_to_stop.add(crew.node)
    crew.guardian.die()
    return True


@_blow("guardian late")
def _guardian_late(_world: World, crew: Crew, _seconds: float, _chance: Random) -> bool:
    if not crew.lives:
        return False
    crew.guardian.be_late()
    return True


@_blow("guardian stop")
def _guardian_stop(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    """SIGSTOP: it finds deadlines that have passed, and what was sent meanwhile, and must not kill what has a lease."""
    if not crew.lives or crew.stands_still or not crew.guardian.stop(THAW_SECONDS):
        return False
    seconds = min(seconds, chance.choice(_STOPPED_SECONDS))
    world.later(seconds, crew.guardian.signal, SIGCONT)
    return True


@_blow("notice")
def _notice(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    """A preemption is announced, and called off or carried out."""
    if not crew.lives:
        return False
    crew.announce(min(20.0, seconds))
    if chance.random() < 0.5:
        crew.call_off(seconds)
    else:
        world.later(30.0, _machine_death, world, crew, 5.0, chance)
    return True


@_blow("machine death")
def _machine_death(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    if not crew.lives or crew.node.pauses:
        return False
    node = crew.node
    node.kill()
    crew.guardian.power_is_gone()
    if crew.holder is not None:
        crew.holder.kill()
    crew.machine = Machine(world.loop, crew.machine.name, 1.0 + crew.chance.uniform(-MOST_DRIFT, MOST_DRIFT), 5.0)
    world.later(min(seconds, world.lease), world.start_again, crew, node)
    return True


@_blow("machine freeze")
def _machine_freeze(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    if crew.lives and chance.random() < 0.3:  # nobody but the guardian sees it then
        _worker_stop(world, crew, 2 * seconds, chance)
    return _stand_still(world, crew, seconds, clock_stands=True)


@_blow("machine suspend")
def _machine_suspend(world: World, crew: Crew, seconds: float, _chance: Random) -> bool:
    return _stand_still(world, crew, seconds, clock_stands=False)


def _stand_still(world: World, crew: Crew, seconds: float, *, clock_stands: bool) -> bool:
    if isinstance(crew.machine, StoreMachine):
        return _all_stand_still(world, crew.machine, seconds)
    node, guardian, machine = crew.node, crew.guardian, crew.machine  # also with a worker that is stopped: rule 7
    has_just_stepped = world.loop.now <= crew.stepped_at + THAW_SECONDS  # see `_wall_step`
    if not crew.lives or crew.stands_still or has_just_stepped:
        return False
    crew.stands_still = True
    still = [node, *guardian.nodes, *([] if crew.holder is None else [crew.holder])]
    for each in still:
        each.pause()
    crew.excused_until = crew.trouble_until = math.inf

    def go_on() -> None:
        crew.stands_still = False
        machine.lose_time(seconds) if clock_stands else machine.was_suspended(seconds)
        for each in still:
            each.resume()
        crew.excused_until = world.loop.now + THAW_SECONDS
        crew.trouble_until = crew.excused_until + _TROUBLE_SECONDS

    world.later(seconds, go_on)
    return True


def _all_stand_still(world: World, machine: StoreMachine, seconds: float) -> bool:
    """Let the machine of the store stand still, with all that runs there: nothing is excused (rule 12)."""
    if any(crew.stands_still for crew in world.crews):
        return False
    still = [world.broker.node]
    for crew in world.crews:
        crew.stands_still = True
        for node, guardian in crew.guardians.items():
            still += [node, *guardian.nodes]
        still += [] if crew.holder is None else [crew.holder]
    for each in still:
        each.pause()
    machine.stand()

    def go_on() -> None:
        machine.lose_time(seconds)
        for crew in world.crews:
            crew.stands_still = False
        for each in still:
            each.resume()

    host = Node(Machine(world.loop, "host"), "host")  # what runs there stands still, too
    world.loop.true_later(seconds, host, go_on)
    return True


@_blow("wall step")
def _wall_step(world: World, crew: Crew, seconds: float, chance: Random) -> bool:
    if crew.stands_still:
        return False  # a step back hides the freeze from everybody: only fencing protects then, as the docs say
    crew.machine.step_wall(seconds if chance.random() < 0.5 else -seconds)
    if crew.machine.is_stores:
        return True  # it changes nothing
    crew.stepped_at = world.loop.now
    crew.trouble_until = max(world.loop.now + THAW_SECONDS, crew.trouble_until)
    return True
