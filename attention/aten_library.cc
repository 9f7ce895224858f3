#include "attention/aten_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <mutex>
#include <string>

namespace rueda::attention {
namespace {

int find_torch(dl_phdr_info* info, size_t, void* found) {
  const char* name = info->dlpi_name;
  const char* file = name == nullptr ? nullptr : std::strrchr(name, '/');
  if (file == nullptr || std::strcmp(file, "/libtorch_cpu.so") != 0) return 0;
  *static_cast<std::string*>(found) = name;
  return 1;
}

template <typename Function>
bool get(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

Status load(AtenLibrary* aten) {
  std::string path;
  dl_iterate_phdr(find_torch, &path);
  if (path.empty())
    return {Code::kNotFound, "PyTorch is not loaded in this process; import torch first"};
  // It stays open: calls may come as long as the process lives.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return {Code::kNotFound, "cannot open " + path};
  const bool all =
      get(library, "aoti_torch_create_tensor_from_blob", &aten->from_blob) &&
      get(library, "aoti_torch_delete_tensor_object", &aten->release) &&
      get(library, "aoti_torch_get_data_ptr", &aten->data) &&
      get(library, "aoti_torch_dtype_float32", &aten->float32) &&
      get(library, "aoti_torch_dtype_bfloat16", &aten->bfloat16) &&
      get(library, "aoti_torch_device_type_cpu", &aten->cpu) &&
      get(library, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", &aten->forward) &&
      get(library, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward",
          &aten->backward);
  if (!all)
    return {Code::kNotFound, path + " has no C functions for attention: PyTorch is too old"};
  (void)get(library, "_ZN2at15get_num_threadsEv", &aten->threads);
  (void)get(library, "omp_set_num_threads", &aten->set_threads);
  (void)get(library, "MKL_Set_Num_Threads_Local", &aten->set_mkl_threads);
  return {};
}

}  // namespace

Result<const AtenLibrary*> aten_library() {
  static std::mutex mutex;
  static AtenLibrary aten;
  static bool loaded = false;
  const std::lock_guard lock(mutex);
  if (!loaded) {
    RUEDA_RETURN_IF_ERROR(load(&aten));
    loaded = true;
  }
  return &aten;
}

}  // namespace rueda::attention
