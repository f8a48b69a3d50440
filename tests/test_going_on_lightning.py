"""A Lightning training that is killed at any moment goes on, with the bytes of an undisturbed one."""

import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

from tasks.stage.progress import STOP_NOTE
from tests.forks import Forks
from tests.test_going_on import Study, further, outputs

pytestmark = pytest.mark.skipif(
    not find_spec("lightning"), reason="lightning is not installed: it is the extra lightning, and none of the tests'"
)

MINE = """
import ratchet as r


@r.stage()
def train(
    run, seed: int, accumulate: int = 1, stream: bool = False, max_time: str = "", signals: list[int] = [],
    times: int = 1,
):
    import os, torch
    from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
    from safetensors.torch import save_file
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Noisy(Dataset):
        def __len__(self):
            return 44

        def __getitem__(self, number):
            x = torch.full((4,), number / 44) + (0 if stream else 0.1) * torch.randn(4)
            return x, x.sum()

    class Stream(IterableDataset):
        def __iter__(self):
            return (Noisy()[number] for number in range(44))

    class Data(LightningDataModule):
        def train_dataloader(self):
            if stream:
                return DataLoader(Stream(), 8)
            own = torch.Generator().manual_seed(seed) if accumulate == 1 else None
            return DataLoader(Noisy(), 8, shuffle=True, generator=own)

        def val_dataloader(self):
            return DataLoader(Noisy(), 8)

    class Network(LightningModule):
        def __init__(self):
            super().__init__()
            dropout = torch.nn.Dropout(0 if stream else 0.3)
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 16), dropout, torch.nn.Linear(16, 1))

        def on_train_epoch_start(self):
            self.scale = 1 + torch.rand(1).item()

        def loss(self, batch):
            return ((self.layers(batch[0])[:, 0] - batch[1]) ** 2).mean()

        def training_step(self, batch, index):
            for number in signals if self.global_step == 7 else ():
                os.kill(os.getpid(), number)
            loss = self.loss(batch)
            self.log("error", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("validation_loss", self.loss(batch))

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}]

    seed_everything(seed)
    trainer = Trainer(
        accelerator="cpu", max_epochs=8, max_time=max_time or None, accumulate_grad_batches=accumulate,
        val_check_interval=4, check_val_every_n_epoch=None, log_every_n_steps=2, default_root_dir=run.scratch,
        callbacks=[best := ModelCheckpoint(monitor="validation_loss", mode="max")],  # the first
        enable_progress_bar=False, enable_model_summary=False,
    )
    network = Network()
    for _ in range(times):
        r.train_lightning(run, trainer, network, datamodule=Data())
    with run.publish("model") as folder:
        save_file(network.state_dict(), folder / "model.safetensors")
    kept = torch.load(best.best_model_path, weights_only=True)["global_step"]
    return {"steps": trainer.global_step, "best": best.best_model_score.item(), "best_step": kept}


@r.study
def mine():
    return train()
"""
OFTEN = "execution.checkpoint_every_steps=2"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[Study]:
    folder = tmp_path_factory.mktemp("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STOP_NOTE, str(folder / "note"))
        yield Study(folder, {"mine.py": MINE}, forks)


@pytest.mark.parametrize("kind", ["accumulate=1", "accumulate=4", "stream=true"])
def test_it_is_killed_and_stopped_and_ends_with_the_bytes_of_an_undisturbed_one(study, tmp_path, kind):
    """The stop saves, since the time until the next checkpoint is long; half a checkpoint, beside it, is not taken.
    Data without a length are read ahead."""
    root, undisturbed = tmp_path / "killed", tmp_path / "whole"
    assert study.run(undisturbed, changes=(kind,)) == 0, study.said[-3000:]

    def within_a_write() -> bool:
        return any(root.glob("mine/*/*/scratch/lightning-*"))

    def rows() -> int:
        return sum(file.read_bytes().count(b"\n") for file in root.glob("mine/*/*/metrics.jsonl"))

    codes = [
        study.run(root, further(root, "mine-train", steps) if steps else within_a_write, changes=(kind, OFTEN))
        for steps in (1, 0, 3, 0)
    ]
    assert codes == [-9] * 4, study.said[-3000:]
    note = study.folder / "note"
    for ask in (note.touch, lambda: True):  # what is true gets a SIGTERM

        def amid(begun: int = rows(), ask: Callable[[], object] = ask) -> bool:
            return bool(rows() > begun and ask())

        saves = further(root, "mine-train", 1)
        assert study.run(root, amid, signal.SIGTERM, (kind,)) == 75 and saves()
        note.unlink(missing_ok=True)
    saved = max(root.glob("mine/*/*/scratch/.copies/*/*"), key=lambda file: int(file.parent.name.partition(".")[0]))
    torn = saved.parents[2] / "lightning-999.ckpt"
    torn.write_bytes(saved.read_bytes()[:-1000])
    assert study.run(root, changes=(kind,)) == 0 and not torn.exists()
    assert outputs(root).keys() == outputs(undisturbed).keys()
    assert [name for name, data in outputs(root).items() if data != outputs(undisturbed)[name]] == []


@pytest.mark.parametrize(
    ("change", "code"), [("max_time=00:00:00:01", 1), ("signals=[2, 2]", 130), ("signals=[15]", 75), ("times=2", 2)]
)
def test_what_ends_early_is_not_finished(study, tmp_path, change, code):
    """By Lightning's own clock; by a second Ctrl-C or a SIGTERM within a step, of which it makes exit codes of its own;
    by a second training, which would go on from the first one's checkpoints."""
    assert study.run(tmp_path, changes=(change,)) == code
    assert not [*tmp_path.glob("mine/*/*/COMPLETE.json")]
