"""Limits of inputs, as a person configures them."""

from tasks.stage.configuration import Configuration, scientific


class InputLimits(Configuration):
    """Limits of inputs, as the network gets them."""

    max_absolute_z: float = scientific(
        20.0,
        gt=0,
        description="The largest absolute value that an input may have after normalising. Values of thousands keep a "
        "network from learning at any learning rate, and end in numbers that are not finite.",
    )
    reason_for_more: str | None = scientific(
        None, min_length=10, description="Why inputs beyond that are taken as they are; shown in the report."
    )

    @property
    def largest(self) -> float | None:
        """The limit; None where a reason is given for going beyond it."""
        return None if self.reason_for_more else self.max_absolute_z
