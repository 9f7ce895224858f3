#include "collectives/nccl/registrations.h"

#include <algorithm>
#include <utility>

#include "collectives/base/log.h"

namespace rueda::nccl {

bool Registrations::knows(const std::byte* data) const {
  return std::any_of(all_.begin(), all_.end(),
                     [data](const auto& known) { return known.block.data.get() == data; });
}

void Registrations::count(const Block& block, bool window) {
  ++totals_.blocks;
  totals_.windows += window ? 1 : 0;
  totals_.bytes += static_cast<int64_t>(block.bytes);
}

Status Registrations::add(Handle comm, const Block& block) {
  const Functions& nccl = library_->functions();
  // What cannot be taken back is not given.
  if (nccl.register_memory == nullptr || nccl.deregister_memory == nullptr) return {};
  Registration made{block, nullptr, nullptr, false};
  RUEDA_RETURN_IF_ERROR(
      library_->check(nccl.register_memory(comm, block.data.get(), block.bytes, &made.handle),
                      "ncclCommRegister", comm));
  all_.push_back(std::move(made));
  count(block, false);
  return {};
}

Result<ResultCode> Registrations::begin_window(Handle comm, const Block& block) {
  Registration made{block, nullptr, std::make_unique<SymmetricHandle>(nullptr), false};
  const ResultCode code = library_->functions().register_window(comm, block.data.get(), block.bytes,
                                                                made.window.get(), kSymmetric);
  RUEDA_RETURN_IF_ERROR(library_->check(code, "ncclCommWindowRegister", comm));
  all_.push_back(std::move(made));
  return code;
}

Status Registrations::end_window(Handle comm) {
  if (*all_.back().window != nullptr) {
    count(all_.back().block, true);
    return {};
  }
  const Block block = std::move(all_.back().block);
  all_.pop_back();
  return add(comm, block);
}

Status Registrations::deregister(Handle comm, const Registration& gone) const {
  const Functions& nccl = library_->functions();
  if (gone.window != nullptr) {
    return library_->check(nccl.deregister_window(comm, *gone.window), "ncclCommWindowDeregister",
                           comm);
  }
  return library_->check(nccl.deregister_memory(comm, gone.handle), "ncclCommDeregister", comm);
}

Status Registrations::remove(Handle comm, const std::byte* data) {
  const auto known = std::find_if(
      all_.begin(), all_.end(), [data](const auto& each) { return each.block.data.get() == data; });
  if (known == all_.end()) return {};
  RUEDA_RETURN_IF_ERROR(deregister(comm, *known));
  all_.erase(known);
  return {};
}

void Registrations::remove_later(const std::byte* data) {
  for (Registration& each : all_) each.late |= each.block.data.get() == data;
}

void Registrations::remove_what_is_late(Handle comm) {
  std::erase_if(all_, [&](const Registration& each) {
    return each.late && deregister(comm, each).ok();  // else it is held until the end
  });
}

void Registrations::remove_all(Handle comm) {
  for (const Registration& each : all_) {
    const Status done = deregister(comm, each);
    if (!done.ok()) RUEDA_INFO("nccl", "{}", done.message());
  }
  all_.clear();
}

}  // namespace rueda::nccl
