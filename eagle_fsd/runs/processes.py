"""The processes of one run, as `accelerate launch` or `torchrun` starts them."""

import os
from dataclasses import dataclass
from datetime import timedelta

PATIENCE = timedelta(days=30)  # the shortest share of a run may wait this long for the longest


@dataclass(frozen=True)
class Processes:
    """This process among those of the run."""

    index: int = 0
    count: int = 1  # 1 without a launcher
    local_index: int = 0  # among those of this machine: the number of its accelerator

    @classmethod
    def launched(cls, *, cpu: bool) -> "Processes":
        """Join the launcher's group, if there is one."""
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            return cls()
        from accelerate import PartialState

        state = PartialState(cpu=cpu, timeout=PATIENCE)
        return cls(state.process_index, state.num_processes, state.local_process_index)

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def device(self, device: str) -> str:
        """Each process its own accelerator, where only "cuda" was asked for."""
        return f"cuda:{self.local_index}" if device == "cuda" and self.count > 1 else device

    def shared(self, value: str) -> str:
        """The main process's value, given to all."""
        values = [value]
        if self.count > 1:
            from accelerate.utils import broadcast_object_list

            broadcast_object_list(values)
        return values[0]

    def wait(self) -> None:
        """Go on when all processes are here; if one has died the launcher ends the others."""
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()
