"""Lets vLLM's Triton kernels run on a CPU, interpreted: for tests, some hundred times slower.

Python imports this file in each process, vLLM's workers too, where its folder is on PYTHONPATH
and TRITON_INTERPRET=1. Two things are missing there: a backend (of Triton 3.9, which asks for an
active driver), and masked stores of booleans.
"""

import os
import types

if os.environ.get("TRITON_INTERPRET") == "1":
    try:
        import triton.backends as backends
        from triton.runtime import interpreter
    except ImportError:
        pass  # another Python that this environment starts
    else:

        class Driver:
            @staticmethod
            def is_active() -> bool:
                return True

        def masked_store(self, pointers, value, mask, cache):
            return interpreter._interpreter.store(pointers.data, value.data, mask.data.astype(bool))

        # vLLM's builds for CPUs ask for a backend of the name cpu, all others pass over that
        for name in ("cpu", "interpreted"):
            backends.backends[name] = types.SimpleNamespace(driver=Driver, compiler=None)
        interpreter.InterpreterBuilder.create_masked_store = masked_store
