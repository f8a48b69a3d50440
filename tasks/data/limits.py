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
