// What this CPU and operating system can run. Compiled for the baseline ISA.
#pragma once

namespace octavo {

// The generic files are compiled for AVX2 + FMA + F16C on x86; false means they must not run.
// Always true on other architectures.
bool cpu_has_baseline();
bool cpu_has_avx2();        // the same on x86, false on other architectures
bool cpu_has_avx512();      // F, BW, VL, DQ, VNNI, and the OS saves the registers
bool cpu_has_avx512bf16();  // the above and BF16
bool cpu_has_neondot();     // AArch64 with the dot-product extension

}  // namespace octavo
