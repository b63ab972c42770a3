"""Rules, guards and drafters of the user's own, from a Python file that a command's --plugin names.

The file puts its classes into RULES, GUARDS or DRAFTERS, as docs/extend.md shows.
"""

import re
import sys
import traceback
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from eagle_fsd.arms import KINDS, check_entry
from eagle_fsd.config import BadInput
from eagle_fsd.decoding.columns import DRAFTS, PLACES
from eagle_fsd.decoding.divergence import DIVERGENCES
from eagle_fsd.drafters.settings import DRAFTERS
from eagle_fsd.rules import RULES
from eagle_fsd.rules.guards import GUARDS

TABLES = {"rule": RULES, "guard": GUARDS, "drafter": DRAFTERS, "divergence": DIVERGENCES}
TABLES |= {"column of places": PLACES, "column of drafts": DRAFTS}
OWN = {kind: table.copy() for kind, table in TABLES.items()}


def of_plugin(arm: str) -> bool:
    """Whether an arm's text names something that a plug-in has put into a table."""
    added = {name for kind, table in TABLES.items() for name in table.keys() - OWN[kind].keys()}
    return not added.isdisjoint(re.split("[:,=@]", arm))


def load_plugin(path: str) -> None:
    """Run a Python file, once a process; what it puts into the library's tables is there. BadInput
    names the line of its error; or it replaces an entry of the library's own, which stays."""
    name, before = "", {kind: table.copy() for kind, table in TABLES.items()}
    try:
        source = Path(path).read_bytes()
        name = f"eagle_fsd_plugin_{sha256(source).hexdigest()[:16]}"
        if name in sys.modules:
            return
        sys.modules[name] = ModuleType(name)  # where dataclasses look their module up
        exec(compile(source, path, "exec"), vars(sys.modules[name]))
        for kind, own in OWN.items():
            for key in own:
                if TABLES[kind].get(key) is not own[key]:
                    raise ValueError(f"the {kind} {key!r} is the library's own: take another name")
            for key in TABLES[kind].keys() - own.keys() if kind in KINDS else ():
                check_entry(kind, key, TABLES[kind][key])
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        for kind, table in before.items():
            TABLES[kind].clear()
            TABLES[kind].update(table)
        sys.modules.pop(name, None)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        told = f"{type(error).__name__}: {error}"
        if isinstance(error, SyntaxError) and error.filename == path:
            lines.append(error.lineno)
            told = f"SyntaxError: {error.msg}"
        place = f"{path}, line {lines[-1]}" if lines else path
        raise BadInput(
            f"plugin {place}: {told}; name a Python file, correct it, or leave --plugin out"
        ) from error
