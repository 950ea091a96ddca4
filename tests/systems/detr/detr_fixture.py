"""Writes detr.npz, the outputs of a small random DETR of transformers.

    pip install torch transformers pillow
    python tests/systems/detr/detr_fixture.py

The parameters are a function of their names and shapes, so the file contains no parameters, and the test
computes the same parameters.
"""

import pathlib
import zlib

import numpy as np

QUERIES, CLASSES, ENCODER_LAYERS, DECODER_LAYERS, D_MODEL, D_FF, HEADS = 7, 5, 2, 3, 32, 40, 4
DEPTHS, WIDTH = (2, 1, 1), 8
LABELS = ([1, 4, 0], [2], [])
BOXES = (
    [[0.3, 0.4, 0.2, 0.3], [0.6, 0.6, 0.3, 0.2], [0.2, 0.7, 0.1, 0.1]],
    [[0.5, 0.3, 0.4, 0.2]],
    [],
)


def make_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the random array of a parameter or buffer of transformers' model."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var") or (name.endswith("weight") and len(shape) == 1):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    scale = 1.0 if "position_embeddings" in name else 0.3 if len(shape) == 1 else np.prod(shape[1:]) ** -0.5
    return (scale * rng.normal(size=shape)).astype(np.float32)


def make_images() -> tuple[np.ndarray, np.ndarray]:
    """Returns images [3, 96, 128, 3], and which of their pixels are no padding, bool [3, 96, 128]."""
    images = np.random.default_rng(0).normal(size=(3, 96, 128, 3)).astype(np.float32)
    valid = np.ones((3, 96, 128), bool)
    valid[1, 64:] = False
    valid[2, :, 80:] = False
    return images, valid


def main() -> None:
    """Writes logits, boxes and the loss, with and without padding."""
    import torch
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        num_channels=3,
        embedding_size=WIDTH,
        hidden_sizes=[4 * WIDTH * 2**stage for stage in range(len(DEPTHS))],
        depths=list(DEPTHS),
        layer_type="bottleneck",
        out_features=[f"stage{len(DEPTHS)}"],
    )
    config = DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        backbone=None,
        num_queries=QUERIES,
        encoder_layers=ENCODER_LAYERS,
        decoder_layers=DECODER_LAYERS,
        d_model=D_MODEL,
        encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        num_labels=CLASSES,
        auxiliary_loss=False,  # with True, the library normalizes the input of each decoder layer twice
    )
    model = DetrForObjectDetection(config).eval()
    arrays = {
        name: x if name.endswith("num_batches_tracked") else torch.tensor(make_array(name, tuple(x.shape)))
        for name, x in model.state_dict().items()
    }
    model.load_state_dict(arrays)
    images, valid = make_images()
    pixels, mask = torch.tensor(images.transpose(0, 3, 1, 2)), torch.tensor(valid.astype(np.int64))
    targets = [
        {"class_labels": torch.tensor(labels, dtype=torch.long), "boxes": torch.tensor(boxes).reshape(-1, 4)}
        for labels, boxes in zip(LABELS, BOXES, strict=True)
    ]
    with torch.no_grad():
        plain = model(pixel_values=pixels)
        padded = model(pixel_values=pixels, pixel_mask=mask, labels=targets)
    np.savez(
        pathlib.Path(__file__).with_name("detr.npz"),
        logits=plain.logits,
        boxes=plain.pred_boxes,
        padded_logits=padded.logits,
        padded_boxes=padded.pred_boxes,
        loss=padded.loss,
    )


if __name__ == "__main__":
    main()
