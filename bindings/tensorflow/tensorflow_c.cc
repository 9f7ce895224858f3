#include "bindings/tensorflow/tensorflow_c.h"

#include <dlfcn.h>

namespace rueda::tensorflow {

Functions tf;

const char* find_functions() {
  void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "libtensorflow_framework.so.2";
#define RUEDA_TF_FIND(result, name, arguments)                                \
  tf.name = reinterpret_cast<decltype(tf.name)>(dlsym(library, "TF_" #name)); \
  if (tf.name == nullptr) return "TF_" #name;
  RUEDA_TF_FUNCTIONS(RUEDA_TF_FIND)
#undef RUEDA_TF_FIND
  return nullptr;
}

}  // namespace rueda::tensorflow
