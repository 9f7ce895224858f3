// RUEDA_CHECK: for what cannot happen. Prints where and why, then aborts; stays on in release
// builds.
#pragma once

#include <cstdio>
#include <cstdlib>

// The file without its folder: the path would be the building machine's.
#define RUEDA_CHECK(condition, what)                                                               \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      std::fprintf(stderr, "rueda: %s:%d: %s: %s\n", __FILE_NAME__, __LINE__, #condition, (what)); \
      std::abort();                                                                                \
    }                                                                                              \
  } while (false)
