#include "runtime/observe/timeline/nvtx_ranges.h"

#include <dlfcn.h>

#include "collectives/base/log.h"

namespace rueda::timeline {
namespace {

// Where the profiler writes its functions. Of the process: the profiler's entry knows no other
// argument than the function that gives these tables, and may keep them for ever.
nvtx::Function functions[nvtx::kModules][nvtx::kMostEntries] = {};

int table_of(int module, nvtx::Function*** table, unsigned* entries) {
  static nvtx::Function* tables[nvtx::kModules][nvtx::kMostEntries + 1] = {};
  if (module < 1 || module >= nvtx::kModules) return 0;
  for (unsigned id = 1; id < nvtx::kEntries[module]; ++id)
    tables[module][id] = &functions[module][id];
  if (entries != nullptr) *entries = nvtx::kEntries[module];
  if (table != nullptr) *table = tables[module];
  return 1;
}

void tell_version(uint32_t) {}

const void* export_table(uint32_t id) {
  static const nvtx::Callbacks callbacks{.table_of = table_of};
  static const nvtx::VersionInfo version{.tell_version = tell_version};
  if (id == nvtx::kCallbacks) return &callbacks;
  return id == nvtx::kVersionInfo ? static_cast<const void*>(&version) : nullptr;
}

template <typename F>
F function(int id) {
  return reinterpret_cast<F>(functions[nvtx::kCore2][id]);
}

// What NVTX's own header does at its first call.
bool attach(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_LAZY);
  if (opened == nullptr) {
    const char* const why = dlerror();
    RUEDA_WARN("timeline",
               "no NVTX ranges: the profiler's library cannot be opened ({}); "
               "NVTX_INJECTION64_PATH names it",
               why == nullptr ? library : why);
    return false;
  }
  const auto entry = reinterpret_cast<nvtx::Initialize>(dlsym(opened, nvtx::kInitialize));
  if (entry == nullptr || entry(export_table) == 0) {
    RUEDA_WARN("timeline", "no NVTX ranges: {} (NVTX_INJECTION64_PATH) {}", library,
               entry == nullptr ? "is no profiler's library: it has no InitializeInjectionNvtx2"
                                : "refuses to start");
    dlclose(opened);
    return false;
  }
  return function<nvtx::DomainCreate>(nvtx::kDomainCreate) != nullptr &&
         function<nvtx::RangeStart>(nvtx::kDomainRangeStart) != nullptr &&
         function<nvtx::RangeEnd>(nvtx::kDomainRangeEnd) != nullptr;
}

}  // namespace

NvtxRanges::NvtxRanges(const std::string& library) {
  if (library.empty()) return;
  static const bool attached = attach(library);
  if (attached) domain_ = function<nvtx::DomainCreate>(nvtx::kDomainCreate)("rueda");
}

NvtxRanges::~NvtxRanges() {
  const auto destroy = function<nvtx::DomainDestroy>(nvtx::kDomainDestroy);
  if (on() && destroy != nullptr) destroy(domain_);
}

nvtx::RangeId NvtxRanges::begin(const std::string& name, int64_t bytes) const {
  nvtx::Attributes what;
  what.message = name.c_str();
  if (bytes > 0) {
    what.payload_type = nvtx::kPayloadUnsigned64;
    what.payload = static_cast<uint64_t>(bytes);
  }
  return function<nvtx::RangeStart>(nvtx::kDomainRangeStart)(domain_, &what);
}

void NvtxRanges::end(nvtx::RangeId range) const {
  function<nvtx::RangeEnd>(nvtx::kDomainRangeEnd)(domain_, range);
}

void NvtxRanges::mark(const std::string& name, Mark mark) {
  if (mark == Mark::kInstant) {
    nvtx::Attributes what;
    what.message = name.c_str();
    const auto happens = function<nvtx::Mark>(nvtx::kDomainMark);
    if (happens != nullptr) happens(domain_, &what);
    return;
  }
  const std::lock_guard lock(mutex_);
  std::vector<nvtx::RangeId>& open = open_[name];
  if (mark == Mark::kBegin) {
    open.push_back(begin(name, 0));
  } else if (!open.empty()) {
    end(open.back());
    open.pop_back();
  }
}

}  // namespace rueda::timeline
