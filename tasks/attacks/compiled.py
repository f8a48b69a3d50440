"""The body of a search compiled at one shape: so many sequences of so many tokens. A judge is never compiled.

Its graphs, forward and with a gradient, are made before the search begins, so that a compiler fails there or nowhere.
Padding stands on the right and in rows below, which no prediction reads; what fills less than `FILLED` of the shape is
read as it is. The choice is one of the numerics of the stage: a continuation has the same, and so the same bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from storage.errors import BadInput
from tasks.attacks.scoring import Victim
from tasks.stage.execution import Execution
from tasks.stage.outcome import is_out_of_memory
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.compiled import is_compilers, prepare_compiler, refusal

KEY, RUNG, FILLED = "search_compile", "default", 0.75


def compile_search(run: StageRun, execution: Execution, victim: Victim, tokens: int, together: int) -> None:
    """Compiles what `victim` searches with, where `execution.compile` asks for it.

    Sequences have so many tokens, and so many have their gradients `together`. Where model or machine do not allow it
    the search is read as it is, which is told. BadInput where that is not how the stage was begun, unless
    `execution.allow_numerics_change`.
    """
    wanted = RUNG if execution.compile != "none" else "none"
    before = run.settled(KEY) or ("none" if any(run.reached()) else wanted)
    if before == wanted == "none" or run.settled(KEY) == "none":  # the compiler failed when it was begun
        return
    body, why = Body(run, victim, tokens), "execution.compile is none" * (wanted == "none")
    why = why or body.refused(together)
    if before != (now := "none" if why else RUNG):
        if any(run.reached()) and not execution.allow_numerics_change:
            raise BadInput(
                f"{run.directory} was begun with {KEY}={before}, and would go on with {now}"
                f"{f' ({why})' if why else ''}: restore that, or set execution.allow_numerics_change=true"
            )
        if any(run.reached()):
            run.settle(KEY, before)  # so that this is a change of it
    run.settle(KEY, now)
    if why:
        run.log.warning("the search is not compiled: %s", why, extra=FOR_THE_TERMINAL)
    else:
        victim.body = body


class Body:
    """The last hidden states of a search, [B, L, D], by the compiled network; by the network itself once it failed."""

    def __init__(self, run: StageRun, victim: Victim, tokens: int) -> None:
        self.run, self.victim, self.shape = run, victim, (victim.batch, tokens)
        self.compiled: Any = None

    def plain(self, **read: torch.Tensor) -> torch.Tensor:
        return self.victim.model.base_model(**read, use_cache=False).last_hidden_state

    def __call__(self, **read: torch.Tensor) -> torch.Tensor:
        ((name, given),) = read.items()
        (rows, tokens), (most_rows, most_tokens) = given.shape[:2], self.shape
        fits = rows <= most_rows and tokens <= most_tokens and rows * tokens >= FILLED * most_rows * most_tokens
        if self.compiled is None or not fits:
            return self.plain(**read)
        filling = (0, 0) * (given.dim() - 2) + (0, most_tokens - tokens, 0, most_rows - rows)
        try:
            states_BLD = self.compiled(**{name: nn.functional.pad(given, filling).contiguous()})
        except Exception as error:
            if not is_compilers(error, RUNG):
                raise
            self.compiled = None  # told as a change of numerics: these are not the bytes of one undisturbed run
            self.run.settle(KEY, "none")
            self.run.log.warning("from here on the search is not compiled: %s", error, extra=FOR_THE_TERMINAL)
            return self.plain(**read)
        return states_BLD[:rows, :tokens]

    def refused(self, together: int) -> str:
        """Why there is no compiled network; empty where its graphs were made."""
        if self.victim.head is None or type(self.victim) is not Victim:
            return "this network is run whole"
        if why := refusal(RUNG, self.victim.device):
            return why
        prepare_compiler()
        self.compiled = torch.compile(self.plain, mode=RUNG, dynamic=False)
        ids_BL = torch.full(self.shape, self.victim.end_of_text, device=self.victim.device)
        embedded_BLD = self.victim.embeddings_VD[ids_BL].detach().requires_grad_()
        try:
            with self.victim.in_precision():
                with torch.no_grad():
                    self.compiled(input_ids=ids_BL)
                if together >= FILLED * self.victim.batch:
                    self.compiled(inputs_embeds=self.victim.cast(embedded_BLD)).sum().backward()
        except Exception as error:
            if not (is_compilers(error, RUNG) or is_out_of_memory(error)):
                raise
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        return "" if torch._dynamo.utils.counters["frames"]["ok"] else "nothing of this network is compiled"
