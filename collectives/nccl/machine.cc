#include "collectives/nccl/machine.h"

#include "collectives/base/log.h"

namespace rueda::nccl {

Result<cuda::DevicePtr> Machine::device(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (const auto known = devices_.find(ordinal); known != devices_.end()) return known->second;
  if (driver_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(driver_, cuda::DriverApi::open(options_.driver));
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

std::shared_ptr<const cuda::kernels::Library> Machine::kernels(const cuda::DevicePtr& device) {
  const std::lock_guard lock(mutex_);
  if (kernels_known_) return kernels_;
  kernels_known_ = true;
  const cuda::ContextScope scope(*device);
  auto opened = cuda::kernels::Library::open(options_.kernels);
  if (opened.ok()) {
    kernels_ = std::move(opened).value();
  } else {
    RUEDA_INFO("cuda", "without rueda's kernels: {}", opened.status().message());
  }
  return kernels_;
}

Result<cuda::Mark> Machine::prepare_mark(int ordinal) {
  RUEDA_ASSIGN_OR_RETURN(const cuda::DevicePtr on, device(ordinal));
  {
    const std::lock_guard lock(mutex_);
    if (used_ < 0) {
      used_ = ordinal;
      if (options_.chosen) options_.chosen(on->uuid());
    }
    if (used_ != ordinal) {
      return invalid_argument("a tensor on GPU " + std::to_string(ordinal) +
                              ", but this rank has used GPU " + std::to_string(used_) +
                              " before: each rank keeps to one (torch.cuda.set_device)");
    }
  }
  cuda::Mark mark;
  RUEDA_ASSIGN_OR_RETURN(mark.event, cuda::Event::create(on));
  return mark;
}

Status Machine::mark_again(cuda::Mark* mark, cuda::StreamHandle stream) {
  const bool shared = reinterpret_cast<uintptr_t>(stream) != cuda::kPerThreadStream;
  const cuda::Device& device = mark->event->device();
  const cuda::ContextScope scope(device);  // a null stream means the current context's
  RUEDA_RETURN_IF_ERROR(scope.status());
  int capture = 0;
  const cuda::Code asked = device.driver()->stream_is_capturing(stream, &capture);
  mark->captured = asked == cuda::kSuccess && capture == cuda::kCaptureActive;
  const std::lock_guard lock(marks_mutex_);
  mark->stream = stream;
  mark->number = shared ? ++marks_ : 0;
  return mark->event->record(stream, mark->captured);
}

}  // namespace rueda::nccl
