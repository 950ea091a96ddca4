"""Export of a translation or language model to CTranslate2, a runtime in C++ (`pip install ctranslate2`).

The package writes the file, so the format is the format of the installed version.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, PAD_ID, UNKNOWN_PIECE
from tfm.errors import UserError, install_extra
from tfm.huggingface.arrays import EXCLUDED_LOGIT, Arrays
from tfm.layers.position_terms import INTERLEAVED_AND_ROTARY, SINUSOIDAL_POSITIONS
from tfm.models.decoder_lm import DecoderLMConfig
from tfm.models.transformer import TransformerConfig
from tfm.positions import sinusoidal_encoding

MODELS = ("transformer", "decoder_lm")
MAX_POSITIONS = 1024  # rows of a table of sinusoids; CTranslate2 cuts inputs at 1024 tokens by default
MAX_DISTANCE = 128  # of the relative bias of tfm and T5
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
}
IDENTITY_HEAD = 8  # features of the heads of a layer that changes nothing


def write_model(
    model: Any, params: Arrays, vocabularies: Sequence[Sequence[str]], folder: str, quantization: str
) -> None:
    """Writes model.bin, config.json and the vocabularies into a folder that exists.

    Args:
      model: config of a model that passes `check_model`.
      params: {name in an export: array} of all parameters.
      vocabularies: the text of each id, of the source and the target, or of a language model.
      folder: the folder.
      quantization: data type of the parameters, such as "int8".

    Raises:
      UserError: if the package is not installed.
    """
    spec = _SpecWriter(model, {name: np.array(x, np.float32) for name, x in params.items()}).write()
    if isinstance(model, TransformerConfig):
        source, target = vocabularies
        spec.register_source_vocabulary(list(source))
        spec.register_target_vocabulary(list(target))
        spec.config.decoder_start_token = target[BOS_ID]
        spec.config.add_source_eos = True
    else:
        (target,) = vocabularies
        spec.register_vocabulary(list(target))
    spec.config.bos_token = target[BOS_ID]
    spec.config.eos_token = target[EOS_ID]
    # The tokenizer of an imported NLLB or mBART-50 has this piece at the id 4, and GPT-2 has no such piece.
    spec.config.unk_token = UNKNOWN_PIECE if UNKNOWN_PIECE in target else target[EOS_ID + 1]
    spec.config.layer_norm_epsilon = model.layer_norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(folder)


def check_model(model: Any, params: Arrays) -> None:
    """Raises a UserError with all reasons why CTranslate2 cannot run a model."""
    if problems := list(find_problems(model, params)):
        raise UserError(
            f"CTranslate2 cannot run this model: {'; '.join(problems)}. Train with the expected values, or "
            "use --format=tfm."
        )


def find_problems(model: Any, params: Arrays) -> Iterator[str]:
    """Yields why CTranslate2 cannot express a model."""
    if model.name not in MODELS:  # the config of another model may have the same class
        yield f"model.name is {model.name!r}, expected {' or '.join(MODELS)}"
        return
    for name, supported in (
        ("norm_order", ("pre", "post")),
        ("deep_norm", (False,)),
        ("attention_window", (None,)),
        ("feed_forward_kernel", (1,)),
    ):
        if getattr(model, name) not in supported:
            yield f"model.{name} is {getattr(model, name)!r}, expected {' or '.join(map(repr, supported))}"
    if model.positions == "alibi":
        yield "model.positions is 'alibi', expected other positions"
    if model.positions == "relative_bias":
        for stack, depth in _depths(model).items():
            tables = [params[f"{stack}/layers_{i}/self_attention/position_bias/biases"] for i in range(depth)]
            if any((table != tables[0]).any() for table in tables):
                yield f"model.positions is 'relative_bias' with other tables in each layer of the {stack}"
    width = model.d_model // model.heads
    if (model.value_features or width) != (model.key_features or width):
        yield f"model.value_features is {model.value_features!r}, expected {model.key_features!r}"


def _depths(model: TransformerConfig | DecoderLMConfig) -> dict[str, int]:
    """Returns {name of a stack: number of its layers}."""
    if isinstance(model, DecoderLMConfig):
        return {"decoder": model.layers}
    return {"encoder": model.encoder_layers, "decoder": model.decoder_layers}


class _SpecWriter:
    """Fills a spec of the package ctranslate2 with the parameters of a model."""

    def __init__(self, model: TransformerConfig | DecoderLMConfig, params: Arrays):
        try:
            from ctranslate2.specs import common_spec, transformer_spec
        except ImportError:
            raise UserError(
                f"The export needs the package ctranslate2: {install_extra('ctranslate2')}."
            ) from None
        self.activations: Any = common_spec.Activation
        self.specs: Any = transformer_spec
        self.model = model
        self.params = params
        self.translates = isinstance(model, TransformerConfig)
        # CTranslate2 adds no vectors to the embeddings if its first layer has other positions. A first
        # layer without positions that changes nothing makes it do both.
        self.adds_and_rotates = model.positions == INTERLEAVED_AND_ROTARY

    def write(self) -> Any:
        """Returns the filled spec, without vocabularies."""
        stacks = {name: self._make_stack(name, depth) for name, depth in _depths(self.model).items()}
        decoder = stacks["decoder"]
        table = self.params["embedding/table"]
        decoder.embeddings.weight = table
        decoder.projection.weight = self.params.get("embedding/output", table)
        bias = np.array(self.params.get("embedding/bias", np.zeros(len(table), np.float32)))
        bias[[PAD_ID, BOS_ID]] = EXCLUDED_LOGIT  # an output never contains them
        decoder.projection.bias = bias
        if not self.translates:
            return self.specs.TransformerDecoderModelSpec(decoder)
        stacks["encoder"].embeddings[0].weight = self.params.get("source_embedding/table", table)
        return self.specs.TransformerSpec(stacks["encoder"], decoder)

    def _make_stack(self, name: str, depth: int) -> Any:
        """Returns the filled spec of the encoder or decoder, without its embedding."""
        model = self.model
        options: dict[str, Any] = {
            "pre_norm": model.norm_order == "pre",
            "activation": getattr(self.activations, ACTIVATIONS[model.activation]),
            "ffn_glu": model.gated,
            "rms_norm": model.norm == "rms_norm",
            "layernorm_embedding": model.embedding_norm,
            "relative_position": model.positions == "relative_keys",
            "relative_attention_bias": model.positions == "relative_bias",
            "num_heads_kv": model.key_value_heads,
            "head_dim": model.key_features,
        }
        kind = self.specs.TransformerEncoderSpec
        if name == "decoder":
            kind = self.specs.TransformerDecoderSpec
            options["with_encoder_attention"] = self.translates
        rotary = kind(depth, model.heads, **options, rotary_dim=0)
        stack = rotary if model.positions == "rotary" else kind(depth, model.heads, **options)
        if self.adds_and_rotates:
            stack.layer = rotary.layer
        self._fill_stack(name, stack)
        return stack

    def _fill_stack(self, name: str, spec: Any) -> None:
        model = self.model
        spec.scale_embeddings = model.scale_embedding
        positions = self._position_table(name)
        if positions is not None:
            spec.position_encodings.encodings = positions
        if model.norm_order == "pre":
            self._fill_norm(spec.layer_norm, f"{name}/norm")
        if model.embedding_norm:
            self._fill_norm(spec.layernorm_embedding, f"{name}_embedding_norm")
        for i, layer in enumerate(spec.layer):
            ours = f"{name}/layers_{i}"
            self._fill_attention(layer.self_attention, f"{ours}/self_attention")
            if name == "decoder" and self.translates:
                self._fill_attention(layer.attention, f"{ours}/cross_attention")
            self._fill_norm(layer.ffn.layer_norm, f"{ours}/feed_forward_residual/norm")
            self._fill_linear(layer.ffn.linear_0, f"{ours}/feed_forward/hidden")
            if model.gated:
                self._fill_linear(layer.ffn.linear_0_noact, f"{ours}/feed_forward/gate")
            self._fill_linear(layer.ffn.linear_1, f"{ours}/feed_forward/output")
        if self.adds_and_rotates:
            spec.layer.insert(0, self._identity_layer(name))

    def _position_table(self, stack: str) -> np.ndarray | None:
        """Returns the vectors that a stack adds to its embeddings, or None if it adds none."""
        model = self.model
        if model.positions == "learned":
            return self.params[f"{stack}_positions/table" if self.translates else "positions/table"]
        layout = SINUSOIDAL_POSITIONS.get(model.positions)
        if layout:
            positions = np.arange(MAX_POSITIONS) + model.first_position
            return np.array(sinusoidal_encoding(positions, model.d_model, layout=layout))
        return np.zeros((MAX_POSITIONS, model.d_model), np.float32) if model.positions == "none" else None

    def _fill_norm(self, spec: Any, ours: str) -> None:
        spec.gamma = self.params[f"{ours}/scale"]
        if f"{ours}/bias" in self.params:
            spec.beta = self.params[f"{ours}/bias"]

    def _fill_linear(self, spec: Any, *names: str) -> None:
        """Fills a projection. Several kernels become one."""
        rows = []
        for name in names:
            kernel = self.params[f"{name}/kernel"]
            input_axes = kernel.ndim - 1 if name.endswith("/output") else 1
            rows.append(kernel.reshape(int(np.prod(kernel.shape[:input_axes])), -1).T)
        spec.weight = np.ascontiguousarray(np.concatenate(rows))
        if f"{names[0]}/bias" in self.params:
            spec.bias = np.concatenate([self.params[f"{name}/bias"].reshape(-1) for name in names])

    def _fill_attention(self, spec: Any, ours: str) -> None:
        """Fills an attention and its norm.

        Args:
          spec: the attention in CTranslate2.
          ours: path of the attention in an export of tfm.
        """
        self._fill_norm(spec.layer_norm, f"{ours}_residual/norm")
        query, key, value, output = (f"{ours}/{name}" for name in ("query", "key", "value", "output"))
        if len(spec.linear) == 2:
            self._fill_linear(spec.linear[0], query, key, value)
        else:
            self._fill_linear(spec.linear[0], query)
            self._fill_linear(spec.linear[1], key, value)
        self._fill_linear(spec.linear[-1], output)
        if not self.model.scale_attention:
            spec.queries_scale = np.float32(1)
        if "relative_position_keys" in vars(spec):
            keys = self.params[f"{ours}/position_bias/keys"]
            spec.relative_position_keys = keys
            # CTranslate2 also adds vectors to the values (Shaw et al. 2018, equation 3). tfm leaves them out.
            spec.relative_position_values = np.zeros_like(keys)
        if "relative_attention_bias" in vars(spec):
            spec.relative_attention_bias = self.params[f"{ours}/position_bias/biases"]
            spec.relative_attention_max_distance = np.dtype("int32").type(MAX_DISTANCE)

    def _identity_layer(self, stack: str) -> Any:
        """Returns a layer that adds zeros to its input."""
        features = self.model.d_model
        hidden = self.model.heads * IDENTITY_HEAD
        options: dict[str, Any] = {"pre_post_layer_norm": True, "head_dim": IDENTITY_HEAD}
        kind = self.specs.TransformerEncoderLayerSpec
        if stack == "decoder":
            kind = self.specs.TransformerDecoderLayerSpec
            options["with_encoder_attention"] = self.translates
        layer = kind(**options)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            norm = getattr(layer, f"{name}_layer_norm")
            norm.gamma = _zeros(features)
            norm.beta = _zeros(features)
        layer.self_attention.linear[0].weight = _zeros(3 * hidden, features)
        layer.self_attention.linear[1].weight = _zeros(features, hidden)
        if stack == "decoder" and self.translates:
            del layer.attention.layer_norm
            layer.attention.linear[0].weight = _zeros(hidden, features)
            layer.attention.linear[1].weight = _zeros(2 * hidden, features)
            layer.attention.linear[2].weight = _zeros(features, hidden)
        layer.ffn.linear_0.weight = _zeros(1, features)
        layer.ffn.linear_1.weight = _zeros(features, 1)
        if self.model.gated:
            layer.ffn.linear_0_noact.weight = _zeros(1, features)
        return layer


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)
