"""What every study is told in which arms with and without a constraint are attacked."""

from __future__ import annotations

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.language.study import LanguageStudy
from tasks.stage.configuration import scientific


class AttackStudy(LanguageStudy):
    """A study of a language model whose arms are attacked, and compared by what that does to them."""

    uat: TriggerAttack = scientific(TriggerAttack(), description="The universal trigger attack.")
    hotflip: FlipAttack = scientific(FlipAttack(), description="The token flip attack.")
    primary: Primary = scientific(Primary(), description="The one comparison that answers the study's question.")
