#include "attention/virtual_world.h"

#include <cstring>
#include <utility>

namespace rueda::attention {

Result<Copies::Point> HostCopies::copy(const std::byte* from, std::byte* to, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return Point();
}

Result<cuda::EventPtr> StreamCopies::mark(cuda::StreamHandle stream) const {
  RUEDA_ASSIGN_OR_RETURN(cuda::EventPtr event, cuda::Event::create(device_));
  RUEDA_RETURN_IF_ERROR(event->record(stream));
  return event;
}

Result<Copies::Point> StreamCopies::copy(const std::byte* from, std::byte* to, int64_t bytes) {
  RUEDA_ASSIGN_OR_RETURN(const cuda::EventPtr before, mark(computing_));
  RUEDA_RETURN_IF_ERROR(before->make_wait(stream_));
  {
    const cuda::ContextScope scope(*device_);
    RUEDA_RETURN_IF_ERROR(scope.status());
    const cuda::DriverApi& driver = device_->driver();
    RUEDA_RETURN_IF_ERROR(driver.check(driver->copy_on_device(reinterpret_cast<cuda::Address>(to),
                                                              reinterpret_cast<cuda::Address>(from),
                                                              static_cast<size_t>(bytes), stream_),
                                       "cuMemcpyDtoDAsync"));
  }
  RUEDA_ASSIGN_OR_RETURN(cuda::EventPtr behind, mark(stream_));
  return Point(std::move(behind));
}

Status StreamCopies::wait(const Point& point) {
  return static_cast<const cuda::Event*>(point.get())->make_wait(computing_);
}

class VirtualWorld::Side final : public Messages {
 public:
  Side(VirtualWorld* world, Rank rank, const Program& program)
      : world_(*world), rank_(rank), ends_(program.list.size()) {}

  Status begin(int number, const Instruction& one, std::byte* memory, int64_t bytes) override {
    auto end = std::make_shared<End>();
    end->memory = memory;
    end->bytes = bytes;
    ends_[static_cast<size_t>(number)] = end;
    if (bytes == 0) {
      end->copied = true;
      return {};
    }
    const bool sends = one.op == Op::kSend;
    const Rank from = sends ? rank_ : one.peer, to = sends ? one.peer : rank_;
    Channel& channel = world_.channels_[{from, to, one.answer}];
    (sends ? channel.sends : channel.receives).push_back(std::move(end));
    if (channel.sends.empty() || channel.receives.empty()) return {};
    End &out = *channel.sends.front(), &in = *channel.receives.front();
    // Both ranks compute in one stream: what it has been given by now covers both ends' begins.
    RUEDA_ASSIGN_OR_RETURN(world_.last_, world_.copies_->copy(out.memory, in.memory, out.bytes));
    out.point = in.point = world_.last_;
    out.copied = in.copied = true;
    world_.bytes_[static_cast<size_t>(from)] += out.bytes;
    channel.sends.erase(channel.sends.begin());
    channel.receives.erase(channel.receives.begin());
    return {};
  }

  Result<bool> complete(int number, const Instruction&) override {
    std::shared_ptr<End>& end = ends_[static_cast<size_t>(number)];
    if (!end->copied) return false;
    if (end->bytes > 0) RUEDA_RETURN_IF_ERROR(world_.copies_->wait(end->point));
    end.reset();
    return true;
  }

 private:
  VirtualWorld& world_;
  const Rank rank_;
  std::vector<std::shared_ptr<End>> ends_;  // by instruction
};

std::unique_ptr<Messages> VirtualWorld::messages_of(Rank rank, const Program& program) {
  return std::make_unique<Side>(this, rank, program);
}

Status VirtualWorld::join() {
  if (last_ == nullptr) return {};
  return copies_->wait(std::exchange(last_, nullptr));
}

}  // namespace rueda::attention
