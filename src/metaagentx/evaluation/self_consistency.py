"""Self-consistency: several answers of one agent to a task, and the answer that most of them give."""

from collections.abc import Sequence
from dataclasses import replace

from ..types import FinalAnswer
from ..workflow.voting import group_by_answer
from .outcomes import Outcome


async def majority_outcome(question: str, votes: Sequence[Outcome]) -> Outcome:
    """Return the outcome whose answer has the most votes (on a tie the earliest), with the cost of all votes.

    Values are compared as values. Of programs the first is taken: their behavior is not compared. Votes count as
    concurrent, so they take as long as the slowest. A vote with an infrastructure fault is left out.
    """
    judged = [vote for vote in votes if vote.judged]
    if not judged:
        return votes[0]
    answered = [vote for vote in judged if not vote.fault] or judged[:1]
    answers = [vote.answer or FinalAnswer.parse("") for vote in answered]
    winner = answered[0]
    if all(answer.kind != "solution" for answer in answers):
        groups = await group_by_answer(question, answers)
        winner = answered[max(groups, key=len)[0]]
    return replace(
        winner,
        vote=0,
        tokens=sum(vote.tokens for vote in judged),
        calls=sum(vote.calls for vote in judged),
        seconds=max(vote.seconds for vote in judged),
    )
