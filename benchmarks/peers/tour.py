"""One workload, played: every entry has its turns in every round, A B C A B C."""

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.contender import Contender
from benchmarks.peers.players import Player
from benchmarks.peers.processes import Failed
from benchmarks.peers.scores import Score
from benchmarks.peers.stores import Stores
from benchmarks.peers.workloads import Entry, Workload


class Tour:
    """The contenders of a workload, and their scores."""

    def __init__(
        self, workload: Workload, entries: Sequence[Entry], stores: Stores, *, folder: Path, venv: Path
    ) -> None:
        self._workload = workload
        self._entries = entries
        self._stores = stores
        self._folder = folder
        self._venv = venv
        self._contenders: dict[str, Contender] = {}
        self._players: dict[str, Player] = {}
        #: By label, a score for each round.
        self.scores: dict[str, list[Score]] = {}
        #: Why a label has no more scores.
        self.left_out: dict[str, str] = {}

    def play(self, rounds: int) -> None:
        """Play all rounds. A contender that fails is left out from then on, and the others go on."""
        with ExitStack() as ended:
            for entry in self._entries:
                contender = self._contenders[entry.label] = self._contender(entry)
                ended.callback(contender.close)
                self._players[entry.label] = self._workload.player(contender)
            self._each(lambda _, player: player.prepare())
            for number in range(1, min(rounds, self._workload.most_rounds) + 1):
                print(f"{self._workload.name}: round {number}", file=sys.stderr, flush=True)
                gc.collect()
                for _ in range(self._workload.turns):
                    self._each(lambda _, player: player.turn())
                self._each(self._note)

    def _note(self, label: str, player: Player) -> None:
        self.scores.setdefault(label, []).append(player.score())

    def _each(self, act: Callable[[str, Player], None]) -> None:
        for label, player in list(self._players.items()):
            try:
                act(label, player)
            except Failed as error:
                self.left_out[label] = str(error)
                self._contenders[label].close()
                del self._players[label]

    def _contender(self, entry: Entry) -> Contender:
        name = f"{self._workload.name}-{entry.label}"
        # No other run's, on a broker that many use.
        token = f"{self._folder.name}-{name}"
        queues = tuple(f"{token}-{number}" for number in range(entry.queues)) if entry.queues > 1 else (token,)
        return Contender(
            entry.system,
            entry.setup.changed(queues=queues),
            self._stores,
            store=entry.store,
            name=name,
            folder=self._folder,
            venv=self._venv,
        )
