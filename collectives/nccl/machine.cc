#include "collectives/nccl/machine.h"

namespace rueda::nccl {

Result<cuda::DevicePtr> Machine::device(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (const auto known = devices_.find(ordinal); known != devices_.end()) return known->second;
  if (driver_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(driver_, cuda::Driver::open(options_.driver));
  }
  RUEDA_ASSIGN_OR_RETURN(cuda::DevicePtr device, cuda::Device::open(driver_, ordinal));
  devices_.emplace(ordinal, device);
  return device;
}

Result<std::shared_ptr<const Library>> Machine::library() {
  const std::lock_guard lock(mutex_);
  if (library_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(library_, Library::find(options_.library));
  }
  return library_;
}

Result<cuda::EventPtr> Machine::mark(int ordinal, cuda::StreamHandle stream) {
  RUEDA_ASSIGN_OR_RETURN(const cuda::DevicePtr on, device(ordinal));
  {
    const std::lock_guard lock(mutex_);
    if (used_ < 0) used_ = ordinal;
    if (used_ != ordinal) {
      return invalid_argument("a tensor on GPU " + std::to_string(ordinal) +
                              ", but this rank has used GPU " + std::to_string(used_) +
                              " before: each rank keeps to one (torch.cuda.set_device)");
    }
  }
  RUEDA_ASSIGN_OR_RETURN(cuda::EventPtr event, cuda::Event::create(on));
  RUEDA_RETURN_IF_ERROR(event->record(stream));
  return event;
}

}  // namespace rueda::nccl
