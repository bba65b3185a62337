"""From a folder's quantization settings to `Quantization`: which formats are read, what is refused.

Reads dictionaries only: AWQ and GPTQ settings, and the config_groups of compressed-tensors. It
looks at no tensor. Sources: the settings' classes in the transformers library and the
documentation of AutoAWQ, GPTQModel and compressed-tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.weights.config_values import ConfigValues

METHODS = ("awq", "gptq", "compressed-tensors")
_CT_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_CT_STRATEGIES = ("tensor", "channel", "group")
_CT_ACTIVATIONS = ("token", "tensor", "channel", "group", "tensor_group")
# Of the class names a config group may target, those of a matrix here.
_CLASSES = ("Linear", "Embedding")
WHOLE_ROW = -1


@dataclass(slots=True, frozen=True)
class Scheme:
    """What the settings say of one matrix; None where they leave it to the tensors.

    `group_size` is in columns, WHOLE_ROW for one scale a row. `symmetric` false asks for zero
    points to be there; where they are, they are read in any case.
    """

    bits: int | None
    group_size: int | None
    symmetric: bool | None


@dataclass(slots=True, frozen=True)
class Quantization:
    """A folder's quantization. `method` is one of METHODS.

    `zero_offset` is what is added to stored zero points (1 in GPTQ's first format). `groups` pairs
    compressed-tensors' targets with a scheme; AWQ and GPTQ have one pair without targets.
    """

    method: str
    label: str
    zero_offset: int
    groups: tuple[tuple[tuple[str, ...], Scheme], ...]

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a module by its name in the file; None where no group targets it."""
        by_class = None
        for targets, scheme in self.groups:
            if not targets or any(_names(target, module) for target in targets):
                return scheme
            if by_class is None and any(target in _CLASSES for target in targets):
                by_class = scheme
        return by_class


def quantization_from_hf(path: Path, section: Any, *, key: str = "") -> Quantization:
    """`section` is what `path` holds under `key` (the whole file where that is empty).

    Raises ModelLoadError naming a bad key, UnsupportedModelError naming key, value and what is
    supported.
    """
    if not isinstance(section, Mapping):
        raise ConfigValues(path, {}).error(key, f"is {section!r}, expected a dictionary")
    values = ConfigValues(path, section, prefix=f"{key}." if key else "")
    method = values.text("quant_method", None)
    if method is None:
        # Files of before transformers named the method: each has keys the others lack.
        if "config_groups" in section:
            method = "compressed-tensors"
        elif "w_bit" in section or "zero_point" in section:
            method = "awq"
        elif "bits" in section:
            method = "gptq"
        else:
            raise values.error("quant_method", "is missing")
    if method == "awq":
        return _awq(values)
    if method == "gptq":
        return _gptq(values)
    if method == "compressed-tensors":
        return _compressed_tensors(values)
    raise values.unsupported("quant_method", method, f"supported: {', '.join(METHODS)}")


def _awq(values: ConfigValues) -> Quantization:
    bits_key, group_key = (
        ("w_bit", "q_group_size") if values.get("bits") is None and values.get("w_bit") is not None
        else ("bits", "group_size")
    )  # fmt: skip
    if values.size(bits_key) != 4:
        raise values.unsupported(bits_key, values.get(bits_key), "supported for awq: 4")
    version = values.text("version", "gemm")
    if version.lower() != "gemm":
        raise values.unsupported("version", version, "supported: gemm")
    group_size = _group_size(values, group_key, 128)
    zeros = values.flag("zero_point", True)
    return Quantization(
        "awq", _label("AWQ", 4, group_size, not zeros), 0, (((), Scheme(4, group_size, None)),)
    )


def _gptq(values: ConfigValues) -> Quantization:
    bits = values.size("bits")
    if bits not in (4, 8):
        raise values.unsupported("bits", bits, "supported for gptq: 4, 8")
    marlin = values.flag("is_marlin_format", False)
    layout = values.text("checkpoint_format", "marlin" if marlin else "gptq")
    if layout not in ("gptq", "gptq_v2"):
        key = "is_marlin_format" if marlin else "checkpoint_format"
        raise values.unsupported(key, values.get(key), "supported: gptq, gptq_v2")
    packed = values.text("pack_dtype", "int32")
    if packed != "int32":
        raise values.unsupported("pack_dtype", packed, "supported: int32")
    group_size = _group_size(values, "group_size", WHOLE_ROW)
    symmetric = values.flag("sym", True)
    # Per-module overrides: what they come to can be seen at the tensors.
    overridden = bool(values.get("dynamic"))
    scheme = Scheme(None, None, None) if overridden else Scheme(bits, group_size, None)
    label = _label("GPTQ" if layout == "gptq" else "GPTQ v2", bits, group_size, symmetric)
    if values.flag("desc_act", False):
        label += ", desc_act"
    if overridden:
        label += ", settings of some modules their own"
    return Quantization("gptq", label, 1 if layout == "gptq" else 0, (((), scheme),))


def _compressed_tensors(values: ConfigValues) -> Quantization:
    status = values.text("quantization_status", "compressed")
    if status not in ("compressed", "frozen"):
        raise values.unsupported("quantization_status", status, "supported: compressed")
    for key in ("kv_cache_scheme", "transform_config"):
        if values.get(key):
            raise values.unsupported(key, values.get(key), "it must be null")
    sparsity = values.get("sparsity_config")
    if sparsity:
        if not isinstance(sparsity, Mapping):
            raise values.error("sparsity_config", f"is {sparsity!r}, expected a dictionary")
        kind = sparsity.get("format")
        if kind != "dense":
            raise values.unsupported("sparsity_config.format", kind, "supported: dense")
    groups = values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise values.error("config_groups", f"is {groups!r}, expected a dictionary of groups")
    own_formats = all(isinstance(g, Mapping) and g.get("format") for g in groups.values())
    if not own_formats or values.get("format") != "mixed-precision":
        _ct_format(values, values.text("format"))
    found, labels = [], []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise values.error(f"config_groups.{name}", f"is {group!r}, expected a dictionary")
        section = values.inside(f"config_groups.{name}", group)
        targets, scheme, label = _ct_group(section)
        found.append((targets, scheme))
        labels.append(label)
    unique = "; ".join(dict.fromkeys(labels))
    return Quantization("compressed-tensors", f"compressed-tensors {unique}", 0, tuple(found))


def _ct_format(values: ConfigValues, name: str) -> None:
    if name not in _CT_FORMATS:
        raise values.unsupported("format", name, f"supported: {', '.join(_CT_FORMATS)}")


def _ct_group(group: ConfigValues) -> tuple[tuple[str, ...], Scheme, str]:
    if group.get("format") is not None:
        _ct_format(group, group.text("format"))
    targets = group.get("targets")
    if not isinstance(targets, list) or not all(isinstance(t, str) for t in targets):
        raise group.error("targets", f"is {targets!r}, expected a list of names")
    for target in targets:
        if target.startswith("re:"):
            try:
                re.compile(target[3:])
            except re.error as err:
                raise group.error("targets", f"{target!r} is no pattern: {err}") from None
    if group.get("output_activations"):
        raise group.unsupported("output_activations", group.get("output_activations"), "null")
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise group.unsupported("weights", weights, "a group must quantize its weights")
    scheme, label = _ct_weights(group.inside("weights", weights))
    activations = group.get("input_activations")
    if activations:
        if not isinstance(activations, Mapping):
            raise group.error("input_activations", f"is {activations!r}, expected a dictionary")
        _ct_activations(group.inside("input_activations", activations))
        return tuple(targets), scheme, f"W{scheme.bits}A8, {label}"
    return tuple(targets), scheme, f"W{scheme.bits}A16, {label}"


def _ct_weights(weights: ConfigValues) -> tuple[Scheme, str]:
    kind = weights.text("type", "int")
    if kind != "int":
        raise weights.unsupported("type", kind, "supported: int")
    bits = weights.size("num_bits", 8)
    if bits not in (4, 8):
        raise weights.unsupported("num_bits", bits, "supported: 4, 8")
    group_size = weights.get("group_size")
    default = "channel" if group_size == WHOLE_ROW else "tensor" if group_size is None else "group"
    strategy = weights.text("strategy", default)
    if strategy not in _CT_STRATEGIES:
        raise weights.unsupported("strategy", strategy, f"supported: {', '.join(_CT_STRATEGIES)}")
    if weights.get("dynamic"):
        raise weights.unsupported("dynamic", weights.get("dynamic"), "supported: false")
    grouped = strategy == "group" and group_size != WHOLE_ROW
    columns = weights.size("group_size") if grouped else WHOLE_ROW
    symmetric = weights.flag("symmetric", True)
    scheme = Scheme(bits, columns, symmetric)
    where = "one scale a tensor" if strategy == "tensor" else _groups_of(columns)
    return scheme, f"{where}, {_symmetry(symmetric)}"


def _ct_activations(activations: ConfigValues) -> None:
    """Dynamic int8 activations only: theirs have a scale a token, ours one for 32 columns."""
    kind = activations.text("type", "int")
    if kind != "int":
        raise activations.unsupported("type", kind, "supported: int")
    if activations.size("num_bits", 8) != 8:
        raise activations.unsupported("num_bits", activations.get("num_bits"), "supported: 8")
    if activations.get("dynamic") is not True:
        value = activations.get("dynamic")
        raise activations.unsupported("dynamic", bool(value) if value is None else value,
                                      "supported: true, scales that are made as it runs")
    strategy = activations.text("strategy", "token")
    if strategy not in _CT_ACTIVATIONS:
        raise activations.unsupported(
            "strategy", strategy, f"supported: {', '.join(_CT_ACTIVATIONS)}"
        )


def _group_size(values: ConfigValues, key: str, default: int) -> int:
    value = values.get(key)
    return WHOLE_ROW if value == WHOLE_ROW else int(values.size(key, default))


def _names(target: str, module: str) -> bool:
    """Whether a target names the module: in full, or as a pattern that matches from its start."""
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return target == module


def _label(method: str, bits: int, group_size: int, symmetric: bool) -> str:
    return f"{method} {bits}-bit, {_groups_of(group_size)}, {_symmetry(symmetric)}"


def _groups_of(columns: int) -> str:
    return "one scale a row" if columns == WHOLE_ROW else f"groups of {columns}"


def _symmetry(symmetric: bool) -> str:
    return "symmetric" if symmetric else "with zero points"
