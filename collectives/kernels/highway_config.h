// Settings of Highway for every file of rueda that uses it; to be included before any of its
// headers.
//
// They must be the same everywhere: the headers define inline functions that depend on them.
#pragma once

// The fallback is plain scalar code: Highway's 128-bit emulation meets a compiler bug in g++ 12.2.
#define HWY_BROKEN_EMU128 1
// Nothing here encrypts; without this, CPUs and virtual machines that hide AES would lose SSE4.
#define HWY_DISABLE_PCLMUL_AES 1

// Run-time dispatch is for x86 only, over the four targets that kernels.h names. Elsewhere the
// build's own instruction set is used, with vectors of a size known at compile time.
#if defined(__x86_64__) || defined(_M_X64)
#define HWY_DISABLED_TARGETS HWY_SSSE3
#else
#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
