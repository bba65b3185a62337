// The probe's inner loops, one table an ISA. Plain data only: the ISA's files include this, and no
// inline function of the standard library may be compiled with their flags.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// Runs `rounds` rounds of independent multiply-accumulates on registers. `operands` are 256 bytes.
// The value returned depends on every product, so that none can be left out.
using DotProbe = float (*)(const void* operands, int64_t rounds);
// Reads `bytes` (a multiple of 1024) from 64-byte aligned memory and returns a sum over them.
using ReadProbe = uint64_t (*)(const uint8_t* data, size_t bytes);

// One multiply-accumulate form: nullptr where the ISA has none of its own.
struct DotForm {
  DotProbe run = nullptr;
  int64_t macs_per_round = 0;
};

struct ProbeTable {
  const char* isa;
  DotForm int8;
  DotForm bf16;
  DotForm f32;
  ReadProbe read;  // nullptr where a lesser table's will do
};

const ProbeTable* probe_generic();
const ProbeTable* probe_avx512();  // nullptr where the CPU or the build lacks it
const ProbeTable* probe_avx512bf16();

}  // namespace octavo
