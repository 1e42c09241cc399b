"""The dataset that ships with the package is sound, and small."""

from slater import data
from slater.data import samples

FINGERPRINT = "cc7985b09face3ddd15a0bb4c90e0e17f241ed706ccc40b504fe2e4aa4dd77aa"


def test_the_sample_is_sound_and_covers_the_trade_off():
    path = samples.ballcircle()
    assert path.stat().st_size < 5e6
    dataset = data.load(path)
    assert dataset.fingerprint == FINGERPRINT
    assert not data.check(dataset).errors
    assert dataset.metadata.env_id == "bullet/BallCircle"
    returns, costs = dataset.episodes.returns, dataset.episodes.costs[:, 0]
    # safe episodes that earn something, and episodes that earn more by breaking a limit of 20
    assert returns[costs <= 20].max() > 500
    assert returns.max() > 1.2 * returns[costs <= 20].max()
