"""Keys of whatever learns from the sensors of a detector."""

from tasks.stage.configuration import Configuration, scientific


class Network(Configuration):
    """Four convolutional and two graph branches give six tokens, which a transformer joins."""

    channels: int = scientific(32, ge=1, description="Channels of each face's own features.")
    width: int = scientific(256, ge=4, description="Width of the six tokens, a multiple of heads.")
    layers: int = scientific(2, ge=1, description="Layers of the transformer.")
    heads: int = scientific(4, ge=1, description="Attention heads in a layer.")


class Filling(Configuration):
    """What is hidden from a network that says what sensors would show, and what counts as an error."""

    mask_ratio: float = scientific(gt=0, lt=1, description="Share of an event's live sensors that is hidden.")
    loss_beta: float = scientific(0.1, gt=0, description="Errors above it count linearly, in normalised light.")


class Readings(Configuration):
    """What light and truth may be; another event ends the study, with file and row, before any training."""

    dead_photons: float = scientific(
        -1.0, added_later=True, description="What a dead sensor shows; 1e10 and more are dead too."
    )
    min_photons: float = scientific(
        -50.0,
        lt=0,
        added_later=True,
        description="Light may be so low by the noise of the electronics around zero; a sensor counts no negative "
        "photons, so that what is lower is a mark or an error.",
    )
    max_photons: float = scientific(
        1e7,
        gt=0,
        lt=1e10,
        added_later=True,
        description="Light of one sensor in an event; xenon gives about 4e4 photons for each MeV, so that 1e7 are all "
        "of 250 MeV in a single sensor.",
    )
    min_energy_mev: float = scientific(
        1.0, gt=0, added_later=True, description="Energies below it are taken for other units than MeV."
    )
    max_energy_mev: float = scientific(
        1000.0, gt=0, added_later=True, description="Energies above it are taken for other units than MeV."
    )
