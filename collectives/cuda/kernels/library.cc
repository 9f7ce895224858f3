#include "collectives/cuda/kernels/library.h"

#include <dlfcn.h>

namespace rueda::cuda::kernels {
namespace {

constexpr const char* kFile = "librueda_cuda.so";

// Of the library that this code lies in, with the slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::open(const std::string& named) {
  if (named == "none") return failed_precondition("RUEDA_CUDA_KERNELS=none");
  const std::string path = named.empty() ? own_folder() + kFile : named;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return failed_precondition(why == nullptr ? path : why);
  }
  const auto get = reinterpret_cast<GetKernelFunctions>(dlsym(handle, "rueda_cuda_kernels"));
  auto library = std::make_shared<Library>();
  library->functions_ = get == nullptr ? nullptr : get(kKernelsVersion);
  if (library->functions_ == nullptr)
    return failed_precondition(path + " is of another version of rueda");
  RUEDA_RETURN_IF_ERROR(library->check(library->functions_->probe(), "the kernels cannot run"));
  return std::shared_ptr<const Library>(std::move(library));
}

Status Library::check(int error, const char* kernel) const {
  if (error == 0) return {};
  const char* const text = functions_->explain(error);
  return internal_error(std::string(kernel) + ": " +
                        (text == nullptr ? "error " + std::to_string(error) : text));
}

}  // namespace rueda::cuda::kernels
