// The floating-point mode that results are computed in: round to nearest, subnormal numbers kept,
// nothing trapped. Reductions must not depend on what the calling thread, or whoever made it, has
// set for itself.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace rueda {

// In force while it lives; then the thread's own mode is back. A few instructions where that is the
// default anyway.
class DefaultFloatMode {
 public:
  DefaultFloatMode() : own_(read()) {
    if (!is_default(own_)) set_default();
  }
  ~DefaultFloatMode() {
    if (!is_default(own_)) write(own_);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = unsigned;
  static constexpr Mode kDefault = 0x1f80;
  static constexpr Mode kFlags = 0x3f;  // what has happened, not how to compute
  static Mode read() { return _mm_getcsr(); }
  static void write(Mode mode) { _mm_setcsr(mode); }
  static void set_default() { write(kDefault); }
  static bool is_default(Mode mode) { return (mode & ~kFlags) == kDefault; }
#elif defined(__aarch64__)
  using Mode = uint64_t;  // FPCR; its flags are in a register of their own
  static Mode read() {
    Mode mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  static void set_default() { write(0); }
  static bool is_default(Mode mode) { return mode == 0; }
#else
  using Mode = fenv_t;
  static Mode read() {
    Mode mode{};
    fegetenv(&mode);
    return mode;
  }
  static void write(const Mode& mode) { fesetenv(&mode); }
  static void set_default() { fesetenv(FE_DFL_ENV); }
  static bool is_default(const Mode&) { return false; }
#endif

  const Mode own_;
};

}  // namespace rueda
