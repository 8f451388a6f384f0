"""Qwen3.5 and Qwen3-Next as GGUF: value heads in another order, rates and norms in another form, layers that are left out.

    qwen3_5_gguf_test.py LITECACHE

The models are tests/fixtures/models/qwen3_5_text, as llama.cpp's converter writes it, and random ones of other sizes.
"""
import json

# Skips the test where packages are missing.
from gguf_files import FIXTURES, SEED, Type, distance, read_safetensors, write_gguf, write_safetensors
import numpy as np
from program_logits import ProgramLogitsTest, main

PARTS = {"in_proj_qkv.weight": "attn_qkv.weight", "in_proj_z.weight": "attn_gate.weight",
         "in_proj_a.weight": "ssm_alpha.weight", "in_proj_b.weight": "ssm_beta.weight", "out_proj.weight": "ssm_out.weight",
         "conv1d.weight": "ssm_conv1d.weight", "norm.weight": "ssm_norm.weight", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias"}


def tiled(count_of, dim):
    """For each row (or column) of the value heads in GGUF, the one in a directory, written with loops."""
    key_heads, value_heads = count_of
    order = []
    for of_key in range(value_heads // key_heads):
        for key_head in range(key_heads):
            head = key_head * (value_heads // key_heads) + of_key
            order += range(head * dim, (head + 1) * dim)
    return np.array(order)


def rearrange(config, part, values, *, back):
    """A part of the Gated DeltaNet with its value heads in GGUF's order, or back in a directory's."""
    heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dim = config["linear_value_head_dim"]
    keys = 2 * heads[0] * config["linear_key_head_dim"]
    if part == "norm.weight":
        return values
    order = tiled(heads, 1 if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias") else dim)
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        order = np.concatenate([np.arange(keys), keys + order])
    if back:
        order = np.argsort(order)
    return np.ascontiguousarray(values[:, order] if part == "out_proj.weight" else values[order])


def to_gguf(config, tensors):
    """{name: (values, type)} with GGUF's values; names are its own, or a directory's that gguf_files.py knows."""
    result = {}
    for name, (values, kind) in tensors.items():
        before, delta, part = name.partition(".linear_attn.")
        if delta:
            values = rearrange(config, part, values, back=False)
            if part == "A_log":
                values = -np.exp(values)
            elif part == "conv1d.weight":
                values, kind = values[:, 0], Type.F32
            name = f"blk.{before.rsplit('.', 1)[1]}.{PARTS[part]}"
        elif name.endswith("norm.weight"):
            values = values + np.float32(1)
        elif name.endswith("mlp.experts.gate_up_proj"):
            name, up = name.replace("gate_up", "gate") + ".weight", name.replace("gate_up", "up") + ".weight"
            values, result[up] = values[:, :values.shape[1] // 2], (values[:, values.shape[1] // 2:], kind)
        elif name.endswith("mlp.experts.down_proj"):
            name += ".weight"
        result[name.replace("post_attention_layernorm", "post_attention_norm")] = values, kind
    return result


def next_to_gguf(config, tensors, legacy):
    """The same of Qwen3-Next, whose projections are in two tensors, by key heads. legacy: the first of them is as it is in
    a directory."""
    heads, key, value = config["linear_num_key_heads"], config["linear_key_head_dim"], config["linear_value_head_dim"]
    value *= config["linear_num_value_heads"] // heads
    result = {}
    for name, (values, kind) in tensors.items():
        before, delta, part = name.partition(".linear_attn.")
        layer = before.rsplit(".", 1)[1] if delta else ""
        if part == "in_proj_ba.weight":
            result[f"blk.{layer}.ssm_ba.weight"] = values, kind
        elif part == "in_proj_qkvz.weight" and legacy:
            result[f"blk.{layer}.ssm_in.weight"] = values, kind
        elif part == "in_proj_qkvz.weight":
            rows = {"q": [], "k": [], "v": [], "z": []}
            for head in range(heads):
                at = head * 2 * (key + value)
                for of, count in (("q", key), ("k", key), ("v", value), ("z", value)):
                    rows[of] += range(at, at + count)
                    at += count
            result[f"blk.{layer}.attn_qkv.weight"] = values[rows["q"] + rows["k"] + rows["v"]], kind
            result[f"blk.{layer}.attn_gate.weight"] = values[rows["z"]], kind
        elif delta:
            values = -np.exp(values) if part == "A_log" else values[:, 0] if part == "conv1d.weight" else values
            result[f"blk.{layer}.{PARTS[part]}"] = values, Type.F32 if part == "conv1d.weight" else kind
        else:
            values = values + np.float32(1) if name.endswith("norm.weight") else values
            result[name.replace("post_attention_layernorm", "post_attention_norm")] = values, kind
    return result


def from_gguf(config, tensors, rounded):
    """{name: values} of a directory, rounded as in the GGUF."""
    result = {}
    for name, (values, _) in tensors.items():
        before, delta, part = name.partition(".linear_attn.")
        if delta and values.ndim == 2:
            values = rearrange(config, part, rounded[f"blk.{before.rsplit('.', 1)[1]}.{PARTS[part]}"], back=True)
        elif values.ndim == 2:
            values = rounded[name]
        result[name] = values
    return result


def random_model(chance, kinds, **sizes):
    """A config, and {name: (values, type)}: types of matrices in turn."""
    config = json.loads((FIXTURES / "qwen3_5_text/config.json").read_text()) | sizes
    hidden, wide, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + heads * dim
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (config["vocab_size"], hidden)}
    for layer, kind in enumerate(config["layer_types"]):
        parts = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
                 "mlp.gate_proj.weight": (wide, hidden), "mlp.up_proj.weight": (wide, hidden),
                 "mlp.down_proj.weight": (hidden, wide)}
        if kind == "full_attention":
            parts |= {"self_attn.q_proj.weight": (2 * queries, hidden), "self_attn.k_proj.weight": (keys, hidden),
                      "self_attn.v_proj.weight": (keys, hidden), "self_attn.o_proj.weight": (hidden, queries),
                      "self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
        else:
            taps = config["linear_conv_kernel_dim"]
            parts |= {f"linear_attn.{part}": shape for part, shape in {
                "in_proj_qkv.weight": (channels, hidden), "in_proj_z.weight": (heads * dim, hidden),
                "in_proj_a.weight": (heads, hidden), "in_proj_b.weight": (heads, hidden),
                "conv1d.weight": (channels, 1, taps), "A_log": (heads,), "dt_bias": (heads,), "norm.weight": (dim,),
                "out_proj.weight": (hidden, heads * dim)}.items()}
        shapes |= {f"model.layers.{layer}.{part}": shape for part, shape in parts.items()}
    tensors = {}
    for i, (name, shape) in enumerate(shapes.items()):
        values = chance.normal(1 if name.endswith("linear_attn.norm.weight") else 0, 0.2, shape).astype(np.float32)
        tensors[name] = values, kinds[i % len(kinds)]
    return config, tensors


class Qwen35GgufTest(ProgramLogitsTest):
    def write(self, config, tensors, name="model.gguf", each_layer=True, further=0, extra=None, convert=to_gguf):
        """Writes a GGUF; returns its path and the values after its rounding. each_layer: which are recurrent is said of
        each. further: layers that predict further tokens."""
        def add(writer):
            dim, heads = config["linear_value_head_dim"], config["linear_num_value_heads"]
            writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
            writer.add_ssm_state_size(config["linear_key_head_dim"])
            writer.add_ssm_group_count(config["linear_num_key_heads"])
            writer.add_ssm_time_step_rank(heads)
            writer.add_ssm_inner_size(dim * heads)
            if sections := config["rope_parameters"].get("mrope_section"):
                writer.add_rope_dimension_sections([*sections, 0])
            writer.add_full_attention_interval(3 if each_layer else config["full_attention_interval"])
            if each_layer:
                recurrent = [kind == "linear_attention" for kind in config["layer_types"]] + [False] * further
                writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent)
            if further:
                writer.add_uint32(f"{writer.arch}.nextn_predict_layers", further)

        path = self.directory / name
        layers = config["num_hidden_layers"] + further
        tensors = convert(config, tensors) | (extra or {})
        rounded = write_gguf(path, config | {"num_hidden_layers": layers}, tensors, add=add)
        return path, rounded

    def further_layer(self, config, tensors):
        """The last layer once more, with what connects it to the others."""
        last, hidden = config["num_hidden_layers"] - 1, config["hidden_size"]
        extra = {f"model.layers.{last + 1}.{name.split('.', 3)[3]}": (values + 1, Type.Q8_0)
                 for name, (values, _) in to_gguf(config, tensors).items() if name.startswith(f"model.layers.{last}.")
                 and values.shape[-1] % 32 == 0}
        for part, shape in {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,), "hnorm": (hidden,),
                            "shared_head_norm": (hidden,)}.items():
            extra[f"blk.{last + 1}.nextn.{part}.weight"] = np.ones(shape, np.float32), Type.F32
        return extra

    def fixture(self, name="qwen3_5_text"):
        return (json.loads((FIXTURES / name / "config.json").read_text()),
                read_safetensors(FIXTURES / name / "model.safetensors"))

    def test_fixture(self):
        """What differs is the order of sums over heads, and that rates are a logarithm of an exponential."""
        config, tensors = self.fixture()
        for dtype, most in (("f32", 2e-6), ("auto", 5e-3)):
            expected = self.logits(FIXTURES / "qwen3_5_text", "--dtype", dtype)
            for each_layer, further in ((True, 0), (False, 0), (True, 1), (False, 1)):
                with self.subTest(dtype=dtype, each_layer=each_layer, further=further):
                    path, _ = self.write(config, tensors, each_layer=each_layer, further=further,
                                         extra=self.further_layer(config, tensors) if further else None)
                    self.assertLess(distance(self.logits(path, "--dtype", dtype), expected), most)

    def test_experts(self):
        """Experts of a layer in one tensor a part, and the one that all rows use."""
        config, tensors = self.fixture("qwen3_5_moe_text")
        path, _ = self.write(config, tensors)
        for dtype, most in (("f32", 2e-6), ("auto", 5e-3)):
            expected = self.logits(FIXTURES / "qwen3_5_moe_text", "--dtype", dtype)
            self.assertLess(distance(self.logits(path, "--dtype", dtype), expected), most)

    def test_qwen3_next(self):
        config, tensors = self.fixture("qwen3_next")
        for legacy in (False, True):
            path, _ = self.write(config, tensors, convert=lambda c, t: next_to_gguf(c, t, legacy))  # noqa: B023
            for dtype, most in (("f32", 2e-6), ("auto", 5e-3)):
                with self.subTest(dtype=dtype, legacy=legacy):
                    expected = self.logits(FIXTURES / "qwen3_next", "--dtype", dtype)
                    self.assertLess(distance(self.logits(path, "--dtype", dtype), expected), most)

    def test_quantized_weights(self):
        kinds = [Type.Q8_0, Type.Q4_0, Type.Q5_1, Type.F16, Type.F32, Type.BF16, Type.Q5_0]
        chance = np.random.default_rng(SEED)
        config, tensors = random_model(chance, kinds, linear_num_key_heads=3, linear_num_value_heads=6,
                                       linear_value_head_dim=16, intermediate_size=96)
        path, rounded = self.write(config, tensors)
        reference = self.directory / "reference"
        reference.mkdir()
        (reference / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
        write_safetensors(reference / "model.safetensors", from_gguf(config, tensors, rounded), Type.F32)
        expected = self.logits(reference)
        self.assertLess(distance(self.logits(path, "--dtype", "f32"), expected), 1e-5)
        # In blocks; the KV cache is in bf16, and so are activations.
        self.assertLess(distance(self.logits(path), expected), 0.05)

    def test_rates_that_are_no_exponentials_are_refused(self):
        config, tensors = self.fixture()
        for value, shown in ((0, "0"), (0.5, "0.5"), (np.nan, "nan"), (-np.inf, "-inf")):
            with self.subTest(value=value):
                rates = -np.ones(config["linear_num_value_heads"], np.float32)
                rates[4] = value
                path, _ = self.write(config, tensors, extra={"blk.2.ssm_a": (rates, Type.F32)})
                error = self.run_logits(path).stderr
                self.assertIn(f"'model.layers.2.linear_attn.A_log' holds {shown} at 4", error)

    def test_tensors_that_do_not_fit_are_refused(self):
        config, tensors = self.fixture()
        channels = 2 * 2 * 24 + 6 * 20
        for name, shape, shown in (("ssm_conv1d.weight", (channels, 3), f"F32 [{channels}, 1, 3]"),
                                   ("ssm_conv1d.weight", (channels - 1, 4), f"F32 [{channels - 1}, 1, 4]"),
                                   ("ssm_a", (5,), "F32 [5]"), ("ssm_dt.bias", (7,), "F32 [7]"),
                                   ("ssm_out.weight", (64, 119), "F32 [64, 119]"),
                                   ("attn_gate.weight", (121, 64), "F32 [121, 64]")):
            with self.subTest(tensor=name, shape=shape):
                path, _ = self.write(config, tensors, extra={f"blk.0.{name}": (-np.ones(shape, np.float32), Type.F32)})
                self.assertIn(shown, self.run_logits(path).stderr)


if __name__ == "__main__":
    print(f"LC_TEST_SEED={SEED}")
    main()
