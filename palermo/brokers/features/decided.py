"""The decisions of a sweep about some of a queue's messages."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision
from palermo.core.message import Message

N = TypeVar("N")


def decided(
    jobs: Iterable[tuple[int, N, Message]], count: int, decide: Callable[[Message], SweepDecision]
) -> tuple[list[Message], list[tuple[N, Message, Remove | Move]], int]:
    """Call `decide` for messages, each given with its position among `count` and its number, until it returns Stop.

    Returns three values: the messages to keep; the messages that leave the queue, with their numbers and decisions; and
    how many of `count` were examined.
    """
    stay = list[Message]()
    gone = list[tuple[N, Message, Remove | Move]]()
    for position, number, message in jobs:
        match decide(message):
            case Stop():
                return stay, gone, position
            case Remove() | Move() as decision:
                gone.append((number, message, decision))
            case Keep():
                stay.append(message)
    return stay, gone, count
