"""The things that attacks attack, and a jail in which to prove that every attack works where nothing protects.

`arena` sets up files, sockets and a victim that a plain process of the sandbox's user could reach. `fight_unprotected`
starts an outer bubblewrap jail with namespaces and a /tmp of its own, builds the same arena in it, and runs the attack
there as a plain process with a stand-in for `door`: nothing stops it, and nothing outside can be hurt. `fight` runs
attacks against the real sandbox. Run as a program, this file is the inside of the outer jail (`python -m
tests.sandbox.arena unprotected NAME`) or attacks the sandbox as whoever started it (`... protected TIER`).
"""

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from metaagentx.sandbox import JSON, Result, Sandbox, Tier, self_attack
from metaagentx.sandbox.jail import NOBODY, bubblewraps, interpreter
from tests.sandbox.attacks import ATTACKS, CORE, INFRA, METADATA, QUICK, Attack

PREFIX = "metaagentx-arena-"
ENVIRONMENT = "METAAGENTX_ARENA"
os.environ.setdefault(ENVIRONMENT, secrets.token_hex(16))  # a secret to inherit, there before any sandbox starts
_PROJECT = Path(__file__).resolve().parents[2]
SELF_ATTACKS = [Attack(f"self: {name}", "self-attack", code) for name, code in self_attack.ATTACKS.items()]
BY_NAME = {attack.name: attack for attack in [*ATTACKS, *SELF_ATTACKS]}
# In a plain process `door` writes the answer into a file that was opened before the attack began.
_STAND_IN = """
import json, sys, types
door = types.ModuleType("door")
_file = open({answer!r}, "w")
door.answer = lambda value: (_file.write(json.dumps(value) + "\\n"), _file.flush())
sys.modules["door"] = door
target = {target!r}
"""


@dataclass
class Arena:
    """Where things are, and whether an attack has changed them."""

    directory: Path
    victim: subprocess.Popen[bytes]
    udp: socket.socket
    target: dict[str, JSON] = field(default_factory=dict)

    def state(self) -> tuple[object, ...]:
        """What must stay as it is in the file under attack."""
        file = self.directory / "secret"
        if not file.exists():
            return ()
        status = file.stat()
        return status.st_mode, status.st_mtime_ns, status.st_size, status.st_uid

    def saw(self, attack: Attack, before: tuple[object, ...]) -> bool:
        """Whether the traces of this attack are there."""
        match attack.seen:
            case "victim is gone":
                return self.victim.poll() is not None
            case "file is there":
                return (self.directory / "new").exists() or Path(str(self.target["shared"])).exists()
            case "file has changed":
                return self.state() != before
            case "datagram came":
                return _arrived(self.udp)
        return False


def _arrived(udp: socket.socket) -> bool:
    try:
        return bool(udp.recv(100))
    except BlockingIOError:
        return False


@contextlib.contextmanager
def arena(neighbour: str, plain: bool = False) -> Iterator[Arena]:
    """Everything worth attacking. `plain` where nothing protects and nothing can be hurt."""
    user = NOBODY if os.getuid() == 0 and not _in_user_namespace() else None
    name, secret = PREFIX + secrets.token_hex(8), secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
        _write_files(directory, secret)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        for address in ("\0" + name, str(directory / "socket")):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen()
        (directory / "socket").chmod(0o777)
        victim = subprocess.Popen(["sleep", "60"], env={"SECRET": secret, "PATH": os.defpath}, user=user)
        stack.callback(_end, victim)
        shared = Path("/tmp") / name
        stack.callback(shared.unlink, missing_ok=True)
        yield Arena(
            directory,
            victim,
            udp,
            {
                "plain": plain,
                "directory": str(directory),
                "file": str(directory / "secret"),
                "link": str(directory / "link"),
                "home": str(directory / "home"),
                "shared": str(shared),
                "secret": secret,
                "environment": os.environ[ENVIRONMENT],
                "neighbour": neighbour,
                "tcp": tcp.getsockname()[1],
                "port": tcp.getsockname()[1],
                "udp": udp.getsockname()[1],
                "name": name,
                "socket": str(directory / "socket"),
                "victim": victim.pid,
                "pid": victim.pid,
                "address": _environment_address(victim.pid),
                "signal": 9 if plain else 0,
                "nodename": os.uname().nodename,
                "version": os.uname().version,
                "project": str(_PROJECT),
            },
        )


def _write_files(directory: Path, secret: str) -> None:
    directory.chmod(0o777)
    (directory / "home" / ".ssh").mkdir(parents=True)
    for name in ("secret", "other-run", "home/.ssh/id_rsa"):
        (directory / name).write_text(secret)
        (directory / name).chmod(0o666)
    (directory / "link").symlink_to(directory / "secret")
    if os.getuid() == 0 and not _in_user_namespace():
        os.chown(directory / "secret", NOBODY, NOBODY)  # what the sandbox's user may do to its own


def _in_user_namespace() -> bool:
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def _environment_address(pid: int) -> int:
    """Where in its memory a process has its environment; it has one only once it has become its program."""
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        if "sleep" in Path(f"/proc/{pid}/cmdline").read_text() and int(stat[47]):
            return int(stat[47])
        time.sleep(0.002)
    raise AssertionError("the victim does not sleep")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# --- where nothing protects


def outer_jail() -> list[str]:
    """A command prefix: a jail of its own kind, in which root of a user namespace may do what it likes."""
    base = sys.base_prefix
    words = [str(bubblewraps()[0]), "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "ALL"]
    words += ["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            words += ["--symlink", str(Path("/", name).readlink()), f"/{name}"]
        elif Path("/", name).exists():
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    words += ["--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home"]
    words += [] if base == "/usr" else ["--ro-bind", base, base]
    for path in ("src", "tests"):
        words += ["--ro-bind", str(_PROJECT / path), f"/project/{path}"]
    words += ["--setenv", "PYTHONPATH", "/project/src:/project", "--setenv", "PATH", os.defpath, "--chdir", "/tmp"]
    words += ["--setenv", ENVIRONMENT, secrets.token_hex(16), "--setenv", "PYTHONDONTWRITEBYTECODE", "1"]
    return [*words, "--", str(interpreter().executable), "-m", "tests.sandbox.arena"]


@dataclass(frozen=True)
class Plain:
    """How one attack went where nothing protects."""

    name: str
    through: bool
    absent: bool
    """This kernel does not have what the attack needs."""
    said: str


def fight_unprotected(attacks: list[Attack]) -> list[Plain]:
    """Run attacks one after the other in an outer jail, each in an arena of its own."""
    assert all(attack.kind == "hole" for attack in attacks), "bombs are not let off"
    names = json.dumps([attack.name for attack in attacks])
    ended = subprocess.run(
        [*outer_jail(), "unprotected", names], capture_output=True, text=True, timeout=90, check=False
    )
    reports = [Plain(**json.loads(line)) for line in ended.stdout.splitlines()]
    assert len(reports) == len(attacks), f"the jail fell down: {ended.stdout[-500:]} {ended.stderr[-500:]}"
    return reports


def _inside_unprotected(attack: Attack) -> Plain:
    """Process 1 of the outer jail: run the attack with all that a careless host would leave lying about."""
    neighbour = secrets.token_hex(16)
    with arena(neighbour, plain=True) as place:
        before = place.state()
        script, answer = place.directory / "attack.py", place.directory / "answer"
        script.write_text(_STAND_IN.format(answer=str(answer), target=place.target) + attack.script)
        ours, theirs = socket.socketpair()
        secret = os.open(place.directory / "secret", os.O_RDONLY)
        memory = os.memfd_create("stdout", 0)
        os.write(memory, neighbour.encode())
        # A shell in between is the parent that can be killed; process 1 cannot. It holds a neighbour's output.
        command = ["/bin/sh", "-c", '"$@"; true', "sh", sys.executable, str(script)]
        fds = [secret, memory]
        process = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=fds
        )
        said = process.communicate(timeout=20)[0].decode("utf-8", "replace")
        through = _wait_for(lambda: _answered(answer) or place.saw(attack, before))
        for fd in fds:
            os.close(fd)
        ours.close()
        theirs.close()
    return Plain(attack.name, through, "ABSENT" in said, said[-2000:])


def _answered(answer: Path) -> bool:
    return answer.exists() and "true" in answer.read_text().splitlines()


def _wait_for(condition: Callable[[], bool], seconds: float = 0.5) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# --- where the sandbox protects


@dataclass(frozen=True)
class Fight:
    """How one attack went against the sandbox."""

    attack: Attack
    result: Result
    through: bool
    seconds: float


async def fight(sandbox: Sandbox, attacks: list[Attack], at_once: int = 8) -> list[Fight]:
    """Run attacks, each in an arena of its own, while a neighbour of theirs waits with a secret in its output."""
    neighbour, over, gate = secrets.token_hex(16), asyncio.Event(), asyncio.Semaphore(at_once)

    async def wait(body: JSON) -> JSON:
        await over.wait()
        return None

    async def one(attack: Attack) -> Fight:
        async with gate:
            with arena(neighbour) as place:
                before, start = place.state(), time.monotonic()
                result = await sandbox.run(
                    attack.script, inputs={"target": place.target}, limits=attack.limits, on_ask=_answer
                )
                seen = place.saw(attack, before)
            return Fight(attack, result, result.answer is True or seen, time.monotonic() - start)

    # One for each fork server, so that every attack has a neighbour.
    code = f"import door; print({neighbour!r}, flush=True); door.ask(1)"
    neighbours = [asyncio.create_task(sandbox.run(code, on_ask=wait)) for _ in range(4)]
    try:
        return list(await asyncio.gather(*(one(attack) for attack in attacks)))
    finally:
        over.set()
        await asyncio.gather(*neighbours)


async def _answer(body: JSON) -> JSON:
    return body


async def _unisolated() -> list[str]:
    """Which of some attacks get through a sandbox that protects from nothing, seen as `fight` sees it."""
    attacks = [attack for attack in ATTACKS if attack.kind == "hole" and (attack.seen or attack.group == METADATA)]
    async with Sandbox(tier=Tier.NONE, unisolated=True, max_runs=64) as sandbox:
        return [fight.attack.name for fight in await fight(sandbox, attacks) if fight.through]


def fight_unisolated() -> list[str]:
    """The same in an outer jail."""
    ended = subprocess.run([*outer_jail(), "unisolated"], capture_output=True, text=True, timeout=60, check=True)
    names: list[str] = json.loads(ended.stdout)
    return names


async def _protected(tier: Tier) -> dict[str, JSON]:
    async with Sandbox(tier=tier, max_runs=64) as sandbox:
        harm = [attack for attack in INFRA if "loop" not in attack.name]
        # Each several times: some of it is a race.
        fights = [*await fight(sandbox, CORE), *await fight(sandbox, harm + harm[-20:] * 3, at_once=16)]
        honest = await sandbox.run("import door; door.answer(sum(range(10)))", limits=QUICK)
    return {
        "tier": sandbox.tier.value,
        "uid": os.getuid(),
        "honest": honest.answer,
        "attacks": len(fights),
        "through": [fight.attack.name for fight in fights if fight.through],
        "infra": [fight.attack.name for fight in fights if fight.result.verdict.value == "infra"],
    }


def main(words: list[str]) -> None:
    """The inside of the outer jail, or an attack on the sandbox by an ordinary user."""
    if words[0] == "unprotected":
        for name in json.loads(words[1]):
            print(json.dumps(asdict(_inside_unprotected(BY_NAME[name]))), flush=True)
    elif words[0] == "unisolated":
        print(json.dumps(asyncio.run(_unisolated())), flush=True)
    else:
        print(json.dumps(asyncio.run(_protected(Tier(words[1])))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
