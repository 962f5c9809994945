"""ScienceWorld's engine: a Java process of our own, asked one thing at a time.

The package ``scienceworld`` brings the simulator as a jar and talks to it by py4j. Its own ``ScienceWorldEnv.step``
works out every valid command after each step, which takes ten times as long as the step; it also leaves the size of the
heap to Java, which takes a quarter of the memory. So the process is started here, and only what is needed is asked:

- the heap is bounded and collected by one thread;
- the process answers on the loopback interface only, on a port that the system gives, to whoever knows a secret;
- it ends with :meth:`Engine.close`, when this object is gone, and, since its standard input ends then, with the Python
  process, however that ends. It is in a session of its own: Ctrl-C is for the Python process, which may go on.

Objects of the simulator are kept in hash sets, so their order, in which it draws random numbers and moves heat, depends
on identity hashes, which Java draws anew in each process. ``-XX:hashCode=2`` makes them all equal, and a set keeps the
order in which it was filled: the same commands give the same episode anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stratagem.errors import ConfigError, GameError

if TYPE_CHECKING:
    from stratagem.games.scienceworld_link import Gateway

__all__ = ["UNKNOWN_COMMAND", "Engine", "Reply", "find_java"]

UNKNOWN_COMMAND = "No known action matches that input."
"""What the engine says to a text that it does not know; nothing happens then."""

_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:-UsePerfData",  # writes no file into the folder for temporary ones
    "-XX:+ExitOnOutOfMemoryError",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """What the engine says to a command."""

    text: str
    score: int
    """Of the episode so far, -100 to 100; negative is failed."""
    completed: bool


def find_java() -> str:
    """Return the path of Java.

    Raises:
        ConfigError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") or (shutil.which(str(Path(home) / "bin" / "java")) if home else None)
    if found is None:
        raise ConfigError(
            "ScienceWorld runs on Java, and there is no java on the PATH or in JAVA_HOME; install a Java runtime of "
            "version 11 or newer, such as Debian's default-jre-headless."
        )
    return found


def _find_jars() -> str:
    if importlib.util.find_spec("scienceworld") is None:
        raise ConfigError(
            "ScienceWorld needs the package scienceworld, which is not installed; run "
            "`pip install -e '.[scienceworld]'` in a clone of Stratagem."
        )
    from py4j.java_gateway import find_jar_path
    from scienceworld.constants import JAR_PATH

    # The simulator's jar holds an older py4j, which knows no secret; the first that is found counts.
    return f"{find_jar_path()}{os.pathsep}{JAR_PATH}"


class Engine:
    """A running simulator; any failure of it is a :class:`GameError`, after which it is closed."""

    def __init__(self, *, heap_mb: int = 400, timeout_s: float = 300.0) -> None:
        """Start the process.

        Args:
            heap_mb: limit of Java's heap in MiB.
            timeout_s: how long one answer may take; the longest, a solution, takes seconds of processor time.

        Raises:
            ConfigError: Java or the package is missing.
            GameError: the process does not start.
        """
        jars, java = _find_jars(), find_java()
        from stratagem.games.scienceworld_link import Gateway

        command = [java, f"-Xmx{heap_mb}m", *_OPTIONS, "-cp", jars, "py4j.GatewayServer"]
        command += ["--die-on-broken-pipe", "--enable-auth", "0"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tempfile.gettempdir(),  # the simulator leaves a table of its object types where it is started
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _end, self._process)
        assert self._process.stdout is not None and self._process.stderr is not None
        port, secret = (self._process.stdout.readline().decode().strip() for _ in range(2))
        if not port.isdigit():
            complaint = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            self.close()
            raise GameError(
                f"Java did not start ScienceWorld: {complaint[-1] if complaint else 'it said nothing'} (command: "
                f"{' '.join(command[:3])} ...). Try `{java} -version`, or lower heap_mb={heap_mb}."
            )
        self._gateway = Gateway(port=int(port), secret=secret, timeout_s=timeout_s)
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self._process, self._gateway)
        self._server: Any = self._ask("the start", self._connect)

    def _connect(self) -> Any:
        java: Any = self._gateway.jvm
        # The simulator tells much about each step; nobody reads it, and a full pipe would stop it.
        silent = java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
        java.java.lang.System.setOut(silent)
        java.java.lang.System.setErr(silent)
        self._random: Any = getattr(getattr(java.scala.util, "Random$"), "MODULE$")
        return java.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def pid(self) -> int:
        """The id of the Java process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the engine can be asked."""
        return self._finalizer.alive

    def load(self, task: str, variation: int, simplification: str, *, gold: bool = False) -> tuple[str, ...]:
        """Make a world, with nothing done in it yet; return the engine's own solution if it was asked for.

        Args:
            task: a name of the package.
            variation: of the task.
            simplification: names with commas between, or empty.
            gold: work out a solution, which takes longer than the rest.

        Raises:
            GameError: the engine refuses or fails.
        """

        def load() -> tuple[str, ...]:
            complaint = self._server.load(task, variation, simplification, gold)
            if complaint:
                raise GameError(f"ScienceWorld does not load {task!r}, variation {variation}: {complaint}")
            interface = self._server.agentInterface().get()
            self._interface, self._parser = interface, interface.inputParser()
            self._agent, self._universe = interface.agent(), interface.universe()
            self._watch = (interface.objMonitor(), interface.task().goalSequence())
            return tuple(self._server.getGoldActionSequence()) if gold else ()

        return self._ask("load", load)

    def seed(self, seed: int) -> None:
        """Fix what happens by chance from here on."""
        self._ask("seed", lambda: self._random.setSeed(seed))

    def step(self, text: str) -> Reply:
        """Carry out a command."""

        def step() -> Reply:
            said = self._server.step(text)
            score = round(100 * self._server.getScore())
            if score < 0 and self._interface.isInErrorState():
                why = self._interface.getErrorStateMessage()
                raise GameError(f"The simulator of ScienceWorld failed ({why}); this episode is lost.")
            return Reply(said, score, bool(self._server.getCompleted()))

        return self._ask("step", step)

    def look(self) -> str:
        """Return what is seen around; takes no time in the game."""
        return self._ask("look", lambda: str(self._server.freeActionLook()))

    def inventory(self) -> str:
        """Return what is carried; takes no time in the game."""
        return self._ask("inventory", lambda: str(self._server.freeActionInventory()))

    def task(self) -> str:
        """Return the task, as the engine states it."""
        return self._ask("task", lambda: str(self._server.getTaskDescription()))

    def tree(self) -> str:
        """Return everything that there is and its properties, as the engine's JSON."""
        return self._ask("tree", lambda: str(self._server.getObjectTree("")))

    def progress(self) -> str:
        """Return which goals of the task are reached."""
        return self._ask("progress", lambda: str(self._server.getGoalProgressStr()))

    def valid(self) -> tuple[str, ...]:
        """Return the valid commands, thousands of them; takes as long as ten steps, and draws random numbers."""
        return self._ask("valid", lambda: tuple(self._server.getValidActionObjectCombinations()))

    def knows(self, text: str) -> bool:
        """Return whether a text is a command that could be carried out now, without carrying it out."""

        def knows() -> bool:
            room = self._agent.getContainer().get()
            arguments = (text, room, self._universe, self._agent, *self._watch, room)
            found = self._parser.parse(*arguments)
            if found._1():
                return True
            several: bool = self._parser.isInAmbiguousState()
            if several:
                self._parser.clearAmbiguousState()
            return several

        return self._ask("knows", knows)

    def close(self) -> None:
        """End the process; safe to call again."""
        self._finalizer()

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        from stratagem.games.scienceworld_link import failure

        if not self.alive:
            raise GameError("The Java process of ScienceWorld was ended; call reset(seed=...) to start a new one.")
        try:
            return call()
        except BaseException as error:  # also Ctrl-C: what the engine was at is not known
            how = failure(error)
            if how is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.5)  # whether it is gone shows a moment later
                code = self._process.poll()
                how = how if code is None else f"ended with code {code}"
            self.close()
            if how is None:
                raise
            raise GameError(
                f"The Java process of ScienceWorld {how} during {what}; this episode is lost, and the next reset "
                "starts a new process."
            ) from error


def _end(process: subprocess.Popen[bytes], gateway: Gateway | None = None) -> None:
    # The simulator holds nothing that is worth a farewell, and a killed process is surely gone.
    if gateway is not None:
        gateway.leave()
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
