// A function of a library that is opened at run time.
#pragma once

#include <dlfcn.h>

namespace rueda::launcher {

// Null: it has none of this name. Function: a pointer to one, symbol<int (*)(int*)>(library, "f").
template <typename Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace rueda::launcher
