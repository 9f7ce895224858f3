#include "runtime/membership/fabric.h"

#include "collectives/host/arena.h"

namespace rueda::membership {

Status Fabric::open(host::Arena* arena) {
  host::SleepWord* word = nullptr;
  host::SleepWord* channel_word = nullptr;
  if (arena == nullptr) {
    private_word = std::make_unique<host::SleepWord>();
    word = private_word.get();
  } else {
    word = arena->sleep_word();
    channel_word = arena->channel_word();
  }
  RUEDA_ASSIGN_OR_RETURN(host::Doorbell bell, host::Doorbell::create(word, channel_word));
  doorbell = std::make_unique<host::Doorbell>(std::move(bell));
  RUEDA_ASSIGN_OR_RETURN(host::EventLoop made, host::EventLoop::create());
  loop = std::make_unique<host::EventLoop>(std::move(made));
  return loop->add(doorbell->fd(), nullptr);
}

}  // namespace rueda::membership
