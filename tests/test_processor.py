"""The description of the processor that the results of benchmarks record."""

import json

import numpy as np
import pytest
import torch

from benchmarks.processor import describe_processor, find_generation, find_vector_bits, read_cpu_info


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "generation"),
    [
        ("GenuineIntel", 6, 207, 2, "Xeon, Emerald Rapids (fifth generation)"),
        ("AuthenticAMD", 25, 17, 1, "EPYC, Zen 4 (fourth generation, Genoa)"),
        ("GenuineIntel", 6, 85, 4, "Xeon, Skylake (first generation)"),
        ("GenuineIntel", 6, 85, 7, "Xeon, Cascade Lake (second generation)"),
        ("GenuineIntel", 6, 85, 11, "Xeon, Cooper Lake (third generation)"),
        ("GenuineIntel", 6, 1, 0, None),
        (None, None, None, None, None),
    ],
)
def test_a_generation_follows_from_the_numbers_of_the_processor(vendor, family, model, stepping, generation):
    assert find_generation(vendor, family, model, stepping) == generation


def test_the_widest_vectors_count():
    assert find_vector_bits("fpu sse2 avx avx2 avx512f avx512bw") == 512
    assert find_vector_bits("fpu sse2 avx avx2") == 256
    assert find_vector_bits("fp asimd evtstrm") == 128
    assert find_vector_bits("avx512fp") is None


def test_the_first_processor_is_read():
    info = read_cpu_info("vendor_id\t: GenuineIntel\nmodel name\t: A: B\n\nvendor_id\t: Other\n")
    assert info == {"vendor_id": "GenuineIntel", "model name": "A: B"}


def test_the_description_can_be_stored_and_names_numpys_library():
    described = json.loads(json.dumps(describe_processor()))
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    assert "openblas" not in blas or "openblas" in described["products"]["numpy"]
    assert described["products"]["torch"].endswith(torch.backends.cpu.get_cpu_capability())
