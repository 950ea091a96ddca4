"""Tests of the checkpoint store by its contract."""

import numpy as np

from tests.checkpoints.store_contract import StoreContract
from tfm.checkpoints.retention import Retention
from tfm.checkpoints.store import CheckpointStore


class TestCheckpointStore(StoreContract):
    def open_store(self, folder, scores=dict, keep=6, keep_best=1):
        return CheckpointStore(folder, scores=scores, retention=Retention(keep, keep_best))

    def make_tree(self, step):
        rng = np.random.default_rng(step)
        params = {"w": rng.normal(size=(3, 2)).astype(np.float32), "v": rng.normal(size=5).astype(np.float32)}
        return {"params": params, "optimizer": {"step": np.int32(step), "state": (params, None)}}
