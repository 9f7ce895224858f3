// A rank of these tests that dies of a signal dies of just that, with its core, under a sanitizer
// too: the sanitizers' own handlers would make it an exit with code 1. And none searches for leaks
// at its end: it is held by a tracer meanwhile, which ruedarun sees and says. Options of the
// environment go on top.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

namespace {
constexpr const char* kOptions =
    "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:disable_coredump="
    "0"
    ":detect_leaks=0";
}

extern "C" {
// Called before anything is set up.
__attribute__((visibility("default"), no_sanitize("address"), no_sanitize("thread"))) const char*
__asan_default_options() {
  return kOptions;
}
__attribute__((visibility("default"), no_sanitize("address"), no_sanitize("thread"))) const char*
__tsan_default_options() {
  return kOptions;
}
}

#endif
