"""Counters in the text format of Prometheus. Labels have few values: no text of a client becomes one."""

from bisect import bisect_left
from collections import Counter

from ..system import Result

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """What a server has done since it started."""

    def __init__(self) -> None:
        self._requests: Counter[int] = Counter()
        self._seconds = [0] * (len(_BUCKETS) + 1)
        self._seconds_sum = 0.0
        self._tokens: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._calls = self._single_agents = 0

    def count_request(self, status: int, seconds: float | None) -> None:
        """Count a request; `seconds` is given for those that asked for an answer. 499: the client left."""
        self._requests[status] += 1
        if seconds is not None:
            self._seconds[bisect_left(_BUCKETS, seconds)] += 1
            self._seconds_sum += seconds

    def count_result(self, result: Result) -> None:
        """Count the cost of an answer, and the faults on the way to it."""
        self._tokens["prompt"] += result.usage.prompt_tokens
        self._tokens["completion"] += result.usage.completion_tokens
        self._calls += result.usage.calls
        self._single_agents += bool(result.note)
        for kind in fault_kinds(result):
            self._faults[kind] += 1

    def count_fault(self, kind: str) -> None:
        """Count a failure of the server itself."""
        self._faults[kind] += 1

    def text(self, in_flight: int, waiting: int) -> str:
        """Return the page."""
        statuses = {f'{{status="{status}"}}': count for status, count in sorted(self._requests.items())}
        tokens = {f'{{kind="{kind}"}}': self._tokens[kind] for kind in ("prompt", "completion")}
        faults = {f'{{kind="{kind}"}}': count for kind, count in sorted(self._faults.items())}
        pages = [
            _metric("requests_total", "counter", "Requests by HTTP status; 499: the client left.", statuses),
            _metric("requests_in_flight", "gauge", "Chat completions under way, with those that wait.", in_flight),
            _metric("requests_waiting", "gauge", "Chat completions that wait for a slot.", waiting),
            self._histogram(),
            _metric("tokens_total", "counter", "Tokens of all calls of the model.", tokens),
            _metric("calls_total", "counter", "Calls of the model.", self._calls),
            _metric("single_agent_total", "counter", "Answers without a design that worked.", self._single_agents),
            _metric("faults_total", "counter", "Faults of designs, executions and the server, by kind.", faults),
        ]
        return "".join(pages)

    def _histogram(self) -> str:
        values: dict[str, float] = {}
        total = 0
        for bound, count in zip((*map(str, _BUCKETS), "+Inf"), self._seconds, strict=True):
            total += count
            values[f'_bucket{{le="{bound}"}}'] = total
        values |= {"_sum": round(self._seconds_sum, 6), "_count": total}
        return _metric("request_seconds", "histogram", "Time of chat completions.", values)


def fault_kinds(result: Result) -> list[str]:
    """Return the kinds of all faults in the tree of a result."""
    faults = [design.fault for design in result.rollout.designs]
    faults += [execution.fault for design in result.rollout.designs for execution in design.executions]
    return [fault.kind for fault in faults if fault is not None]


def _metric(name: str, kind: str, text: str, values: dict[str, int] | dict[str, float] | int) -> str:
    full = f"metaagentx_{name}"
    rows = values.items() if isinstance(values, dict) else [("", values)]
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *(f"{full}{label} {value}" for label, value in rows)]
    return "\n".join(lines) + "\n"
