"""The parts of the reliability lab: what each is called, what runs it for so long, and what it shows."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    Attributes:
        name: of its record.
        title: in the report.
        shows: what it is, in a sentence or two.
        command: below python, with {seconds} and {first} where it takes them; it prints one JSON object.
        share: of a night, where it runs for as long as it is asked; 0 = it takes what it takes.
    """

    name: str
    title: str
    shows: str
    command: tuple[str, ...]
    share: float = 0.0


_CHAOS: Final = ("-m", "tests.chaos", "--json", "-")
_SIMULATION: Final = ("-m", "tests.simulation", "--first", "{first}", "--seconds", "{seconds}", "--json")

PARTS: Final = (
    Part(
        name="simulation",
        title="Simulation, in-memory store",
        shows="The real worker, supervisor, lease keeper, settlement, breaker and guardian run unchanged on virtual"
        " time, over a simulated network and kernel. A seed decides machines, clocks, tasks and which of the faults"
        " strike when; a model of its own checks every rule at every request and instant.",
        command=_SIMULATION,
        share=0.45,
    ),
    Part(
        name="simulation-sqlite",
        title="Simulation, the embedded queue",
        shows="The same, over the SQL of the embedded queue, on a real file.",
        command=(*_SIMULATION, "--store", "sqlite"),
        share=0.2,
    ),
    Part(
        name="simulation-service-bus",
        title="Simulation, Service Bus",
        shows="The same, over the real protocol of Service Bus: each request of HTTP and AMQP goes over the simulated"
        " network to the emulator's queue. To go back is two requests there, a receive is a long poll, the queue drops"
        " names that it knows, and an original may run beside its copy; the rules look at each message.",
        command=(*_SIMULATION, "--store", "service-bus"),
        share=0.1,
    ),
    *(
        Part(
            name=f"chaos-{store}",
            title=f"Chaos with real processes: {title}",
            shows="Real workers are killed and stopped, one process or two at once, cut off from their store, and the"
            " store is killed where it promises to live through that. What the tasks wrote is compared with what the"
            " store wrote. A tree's margin is the time from its death to the expiry of its lease, in seconds.",
            command=(*_CHAOS, "--store", store, "--seed", "{first}", "--seconds", "{seconds}"),
            share=0.05,
        )
        for store, title in (
            ("sqlite", "the embedded queue"),
            ("service", "the HTTP service"),
            ("postgres", "PostgreSQL"),
            ("azurite", "Storage Queue, on Azurite"),
        )
    ),
    Part(
        name="chaos-partitions",
        title="Chaos with real processes: partitions alone",
        shows="The same on the service, with workers that are cut off at a uniform moment of the renewal period.",
        command=(*_CHAOS, "--only", "partitions", "--store", "service", "--seed", "{first}", "--seconds", "{seconds}"),
        share=0.05,
    ),
    Part(
        name="chaos-trees",
        title="Hostile trees",
        shows="Eight kinds of trees that try to outlive their task, below a real worker, killed in each of five ways.",
        command=(*_CHAOS, "--only", "trees"),
    ),
    Part(
        name="models",
        title="Models, by exhaustive search",
        shows="All states of small models of the lease protocol, of requeue by copy and of named leases; and what each"
        " rule is for: without it there is a counter-example.",
        command=("-m", "tests.models", "--json"),
    ),
    Part(
        name="crash",
        title="Crash points of the embedded queue",
        shows="A process that writes the file is killed at each of its writing system calls, before it and with half"
        " of its bytes; and a power failure leaves out what was not synced. What was acknowledged must be there.",
        command=("-m", "tests.crash", "--json"),
    ),
    Part(
        name="mutants",
        title="Mutants",
        shows="Small faults planted into the product; the tests must find each.",
        command=("-m", "tests.mutants", "--json"),
    ),
)
