"""The processes that a launcher (accelerate, torchrun) starts for a command, among them this one.

They share a run's folder (folder.py): the first alone writes its settings, each its own records.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

from eagle_fsd.config import BadInput

PATIENCE = timedelta(days=30)  # the shortest share of a run may wait this long for the longest
# What a launcher sets beside WORLD_SIZE
GROUP = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def launched_processes() -> int:
    """How many a launcher has started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def check_launched(device: str) -> None:
    """Refuse a device that all processes of a launcher would take, each for a whole target."""
    if launched_processes() > 1 and (device == "auto" or device.startswith("cuda:")):
        does = "spread its target over all" if device == "auto" else "put its target there"
        raise BadInput(
            f"--device {device}: each of the launcher's {launched_processes()} processes would "
            f"{does}; give --device cuda, by which each has a device of its own, or start the "
            "command without a launcher"
        )


@dataclass(frozen=True)
class Processes:
    """This process among those of the run."""

    index: int = 0
    count: int = 1  # 1 without a launcher
    local_index: int = 0  # among those of this machine: the number of its accelerator

    @classmethod
    def launched(cls, device: str) -> "Processes":
        """Join the launcher's group, if there is one."""
        check_launched(device)
        if launched_processes() < 2:
            return cls()
        if lacking := [name for name in GROUP if name not in os.environ]:
            raise BadInput(
                f"the environment has WORLD_SIZE {launched_processes()} and no "
                f"{' or '.join(lacking)}: start the command by accelerate launch or torchrun, "
                "which set them all, or unset WORLD_SIZE for a single process"
            )
        from accelerate import PartialState

        state = PartialState(cpu=not device.startswith("cuda"), timeout=PATIENCE)
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
