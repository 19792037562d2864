"""Describes the processor of a measurement: its generation, its vectors, and the libraries of its matrix products.

Speeds on two processors are comparable only with these, because numpy and torch choose other kernels on each.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU_INFO = Path("/proc/cpuinfo")
GENERATIONS = {
    ("GenuineIntel", 6, 79): "Xeon, Broadwell",
    ("GenuineIntel", 6, 106): "Xeon, Ice Lake (third generation)",
    ("GenuineIntel", 6, 143): "Xeon, Sapphire Rapids (fourth generation)",
    ("GenuineIntel", 6, 207): "Xeon, Emerald Rapids (fifth generation)",
    ("GenuineIntel", 6, 173): "Xeon 6, Granite Rapids",
    ("AuthenticAMD", 23, 1): "EPYC, Zen (first generation, Naples)",
    ("AuthenticAMD", 23, 49): "EPYC, Zen 2 (second generation, Rome)",
    ("AuthenticAMD", 25, 1): "EPYC, Zen 3 (third generation, Milan)",
    ("AuthenticAMD", 25, 17): "EPYC, Zen 4 (fourth generation, Genoa)",
    ("AuthenticAMD", 25, 160): "EPYC, Zen 4c (fourth generation, Bergamo)",
    ("AuthenticAMD", 26, 2): "EPYC, Zen 5 (fifth generation, Turin)",
}
"""Marketing name and generation by vendor, family and model of the processor, as in Linux' `arch/x86` headers."""
SKYLAKE = ("GenuineIntel", 6, 85)
"""Vendor, family and model of three generations, which differ in their stepping."""
VECTOR_FLAGS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("sse2", 128), ("asimd", 128))
"""Flags of the processor, the widest vectors first, and the bits of the vectors."""


def describe_processor() -> dict[str, Any]:
    """Returns the processor's name, numbers, generation and vectors, and numpy's and torch's libraries of products.

    Numbers that the system does not tell are None.
    """
    info = read_cpu_info(CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.exists() else "")
    family, model, stepping = (_read_number(info, name) for name in ("cpu family", "model", "stepping"))
    vendor = info.get("vendor_id")
    return {
        "cpu": info.get("model name") or platform.processor(),
        "vendor": vendor,
        "family": family,
        "model": model,
        "stepping": stepping,
        "generation": find_generation(vendor, family, model, stepping),
        "vector_bits": find_vector_bits(info.get("flags", info.get("Features", ""))),
        "products": describe_products(),
    }


def read_cpu_info(text: str) -> dict[str, str]:
    """Returns the fields of the first processor in the text of `/proc/cpuinfo`."""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read_number(info: Mapping[str, str], name: str) -> int | None:
    return int(info[name]) if info.get(name, "").isdecimal() else None


def find_generation(vendor: str | None, family: int | None, model: int | None, stepping: int | None) -> str | None:
    """Returns the marketing name and the generation of a processor, or None if they are not known."""
    if (vendor, family, model) == SKYLAKE and stepping is not None:
        if stepping < 5:
            return "Xeon, Skylake (first generation)"
        return "Xeon, Cascade Lake (second generation)" if stepping < 10 else "Xeon, Cooper Lake (third generation)"
    return GENERATIONS.get((vendor, family, model))  # type: ignore[arg-type]


def find_vector_bits(flags: str) -> int | None:
    """Returns the width in bits of the widest vectors that the flags of a processor name, or None for none."""
    present = set(flags.split())
    return next((bits for flag, bits in VECTOR_FLAGS if flag in present), None)


def describe_products() -> dict[str, str]:
    """Returns library, version and kernels of numpy's and torch's matrix products."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    folder = Path(np.__file__).parent
    # Wheels of numpy have their library beside the package, in `numpy.libs`.
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if Path(pool["filepath"]).is_relative_to(folder.with_name("numpy.libs"))] or pools
    named = {f"{pool['internal_api']} {pool['version']} {pool.get('architecture') or ''}".strip() for pool in own}
    return {"numpy": ", ".join(sorted(named)) or "unknown", "torch": _describe_torch(torch)}


def _describe_torch(torch: Any) -> str:
    """Returns torch's library of products and the instructions of its kernels, as `MKL, oneDNN, AVX512`."""
    libraries = [
        name
        for name, there in (
            ("MKL", torch.backends.mkl.is_available()),
            ("oneDNN", torch.backends.mkldnn.is_available()),
        )
        if there
    ]
    return ", ".join([*libraries, torch.backends.cpu.get_cpu_capability()])
