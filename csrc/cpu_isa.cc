// CPUID and XGETBV checks on x86: the operating system must save the wide registers, or using them
// traps. On AArch64 NEON is part of the baseline, and Linux says what else there is.
#include "cpu_isa.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

#include <cstdint>
#define OCTAVO_X86 1
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define OCTAVO_ARM_LINUX 1
#endif

namespace octavo {

#ifdef OCTAVO_X86
namespace {

struct Features {
  bool baseline = false;
  bool avx512 = false;
  bool avx512bf16 = false;
};

bool bit(uint32_t word, int index) { return (word >> index) & 1u; }

// Bit numbers: Intel SDM volume 2, CPUID leaves 1 and 7.
Features detect() {
  Features found;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool fma = bit(c, 12), osxsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!osxsave || !avx) return found;
  uint32_t xcr0, high;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
  if ((xcr0 & 0x6u) != 0x6u || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.baseline = fma && f16c && bit(b, 5);
  const bool zmm_saved = (xcr0 & 0xE6u) == 0xE6u;
  found.avx512 = found.baseline && zmm_saved && bit(b, 16) && bit(b, 17) && bit(b, 30) &&
                 bit(b, 31) && bit(c, 11);
  if (found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx512bf16 = bit(a, 5);
  return found;
}

const Features& features() {
  static const Features found = detect();
  return found;
}

}  // namespace

bool cpu_has_baseline() { return features().baseline; }
bool cpu_has_avx2() { return features().baseline; }
bool cpu_has_avx512() { return features().avx512; }
bool cpu_has_avx512bf16() { return features().avx512bf16; }
#else
bool cpu_has_baseline() { return true; }
bool cpu_has_avx2() { return false; }
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512bf16() { return false; }
#endif

#ifdef OCTAVO_ARM_LINUX
// HWCAP_ASIMDDP of the Linux kernel's asm/hwcap.h, which old headers lack.
bool cpu_has_neondot() { return (getauxval(AT_HWCAP) >> 20) & 1u; }
#else
bool cpu_has_neondot() { return false; }
#endif

}  // namespace octavo
