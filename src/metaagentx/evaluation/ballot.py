"""Self-consistency: several answers of one agent to a task, and the one that most of them give."""

from collections.abc import Sequence
from dataclasses import replace

from ..workflow.messages import Message
from ..workflow.voting import group_by_answer
from .outcomes import Outcome


async def elect(question: str, votes: Sequence[Outcome]) -> Outcome:
    """The outcome of the first answer of the largest group, the earliest on a tie, at the price of all.

    Values are compared as values. Of programs the first is taken: what they do is not looked at. Votes count as cast at
    the same time, so they take as long as the slowest. A vote that the machinery spoilt is not cast.
    """
    cast = [vote for vote in votes if vote.judged]
    if not cast:
        return votes[0]
    answered = [vote for vote in cast if not vote.fault] or cast[:1]
    messages = [Message(vote.answer) for vote in answered]
    winner = answered[0]
    if all(message.answer.kind != "solution" for message in messages):
        groups = await group_by_answer(question, messages)
        winner = answered[max(groups, key=len)[0]]
    return replace(
        winner,
        vote=0,
        tokens=sum(vote.tokens for vote in cast),
        calls=sum(vote.calls for vote in cast),
        seconds=max(vote.seconds for vote in cast),
    )
