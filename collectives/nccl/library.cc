#include "collectives/nccl/library.h"

#include <dlfcn.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <utility>

namespace rueda::nccl {
namespace {

constexpr int kOldest = 21400;

// Where dlopen found it.
std::string path_of(void* library, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr ||
      map->l_name[0] == '\0') {
    return asked;
  }
  return map->l_name;
}

// Of the library that this code lies in, with the slash.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&path_of), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

std::string version_text(int version) {
  // Up to 2.8 the number was 2708 for 2.7.8.
  const int unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

Result<std::shared_ptr<const Library>> Library::open(const Candidate& candidate) {
  const int flags = RTLD_NOW | RTLD_LOCAL | (candidate.must_be_loaded ? RTLD_NOLOAD : 0);
  void* const handle = dlopen(candidate.path.c_str(), flags);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return failed_precondition(why == nullptr ? "is not loaded" : why);
  }
  auto library = std::make_shared<Library>();
  library->path_ = path_of(handle, candidate.path);
  library->origin_ = candidate.origin;
  Functions& f = library->functions_;
  const auto load = [handle](const char* symbol, auto** place) {
    *place = reinterpret_cast<std::remove_reference_t<decltype(*place)>>(dlsym(handle, symbol));
    return *place != nullptr;
  };
  std::string missing;
#define RUEDA_X(member, symbol, result, arguments) \
  if (!load(#symbol, &f.member)) missing += (missing.empty() ? "" : ", ") + std::string(#symbol);
  RUEDA_NCCL_NEEDED(RUEDA_X)
#undef RUEDA_X
#define RUEDA_X(member, symbol, result, arguments) (void)load(#symbol, &f.member);
  RUEDA_NCCL_OPTIONAL(RUEDA_X)
#undef RUEDA_X
  if (f.get_version != nullptr) (void)f.get_version(&library->version_);
  if (!missing.empty() || library->version_ < kOldest) {
    return failed_precondition("is NCCL " + version_text(library->version_) +
                               (missing.empty() ? "" : " without " + missing) +
                               "; 2.14 or newer is needed");
  }
  return std::shared_ptr<const Library>(std::move(library));
}

Result<std::shared_ptr<const Library>> Library::open(const std::vector<Candidate>& candidates) {
  std::string tried;
  for (const Candidate& candidate : candidates) {
    auto library = open(candidate);
    if (library.ok()) return library;
    tried += "\n  " + candidate.path + " (" + candidate.origin + "): " + library.status().message();
    // A second NCCL beside one that is loaded would share its symbols and its network ports.
    if (candidate.must_be_loaded) break;
  }
  return failed_precondition(
      "GPU tensors need NCCL, which cannot be used:" + tried +
      "\ninstall it (pip install nvidia-nccl-cu13, or -cu12 for CUDA 12), or name its file in "
      "RUEDA_NCCL_LIBRARY");
}

Result<std::shared_ptr<const Library>> Library::find(const std::string& named) {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return open(candidates(text, named, own_folder()));
}

std::string Library::describe() const {
  return "NCCL " + version_text(version_) + " (" + path_ + ", " + origin_ + ")";
}

Status Library::check(ResultCode code, const char* call, Handle comm) const {
  if (code == kSuccess || code == kInProgress) return {};
  const char* const text = functions_.error_string(code);
  const char* const last = functions_.last_error == nullptr ? nullptr : functions_.last_error(comm);
  return internal_error(std::string(call) + ": " +
                        (text == nullptr ? "error " + std::to_string(code) : text) +
                        (last == nullptr || *last == '\0' ? "" : ": " + std::string(last)));
}

}  // namespace rueda::nccl
