"""What is contested about the real service, as switches: code above must hold whichever way each is set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fidelity:
    """How the emulator behaves where sources contradict each other, or are silent.

    Attributes:
        locks_survive_disconnect: whether a lock outlives the AMQP connection that got it; else it ends with the
            connection and the delivery counts. The SDK's maintainers say the first, one page of the documentation the
            second.
        expired_lock_settles: whether an expired lock still settles and renews while nobody else has taken the message.
        activation_renumbers: whether a scheduled message gets a new sequence number when its time comes, as the
            documentation says.
        rest_missing_entity_status: what REST answers for a queue that does not exist: 410 as documented, or 404.
        rest_lost_lock_status: what REST answers for a lock that is gone: 404 as documented; 409 and 410 are reported.
        rest_too_large_status: what REST answers for a message over the limit: 403 as documented, or 413.
        rest_renew_returns_properties: whether the answer to a renewal has BrokerProperties with LockedUntilUtc;
            the documentation promises none.
        rest_first_delivery_count: the DeliveryCount of a first delivery over REST: 1, or 0 as over AMQP.
        abandon_modifies_properties: whether `properties-to-modify` of an abandon is heeded over `$management`; else it
            is ignored without a word.
        refuses_long_dead_letter_text: whether a dead-letter reason or description over 4,096 characters is refused;
            the limit is known from a check in one client, not from the service.
    """

    locks_survive_disconnect: bool = True
    expired_lock_settles: bool = False
    activation_renumbers: bool = True
    rest_missing_entity_status: int = 410
    rest_lost_lock_status: int = 404
    rest_too_large_status: int = 403
    rest_renew_returns_properties: bool = False
    rest_first_delivery_count: int = 1
    abandon_modifies_properties: bool = True
    refuses_long_dead_letter_text: bool = True
