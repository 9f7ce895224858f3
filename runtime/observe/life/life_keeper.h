// LifeKeeper: what of a process's life page lasts as long as the process, through all epochs that
// it is in: the mapping, the descriptors, and the thread that the page's robust futex follows. That
// thread sleeps for ever, so that the kernel tells of the process's end whatever it was doing.
//
// Process-wide; made at the first init under an agent, and never gone. Forked children have none.
// Threads: any.
// Failure: where the kernel refuses robust lists, or there is no thread left, death is known by the
// sockets and by the process's parent.
#pragma once

#include <string>

#include "collectives/base/status.h"
#include "collectives/host/fork_guard.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::life {

// The three descriptors as the launcher tells them: "5,6,7" (page, news, alarm).
struct LifeFds {
  int page = -1, news = -1, alarm = -1;
  static Result<LifeFds> parse(const std::string& text);
};

class LifeKeeper {
 public:
  // Of the page behind that descriptor.
  static Result<LifeKeeper*> of(const LifeFds& fds);

  LifePage* page() const { return page_.page(); }
  int news() const { return news_.get(); }
  int alarm() const { return alarm_.get(); }

 private:
  // As the kernel reads it when the thread ends (set_robust_list(2)). The list is in private
  // memory.
  struct RobustNode {
    RobustNode* next;
  };
  struct RobustHead {
    RobustNode* list;
    long futex_offset;
    RobustNode* pending;
  };

  LifeKeeper(LifeMapping page, UniqueFd news, UniqueFd alarm)
      : page_(std::move(page)), news_(std::move(news)), alarm_(std::move(alarm)) {}
  // The thread; returns once it owns the futex, or has failed to.
  Status own();
  Status take_ownership();

  const LifeMapping page_;
  const host::GuardedFd news_, alarm_;
  uint64_t device_ = 0, inode_ = 0;
  RobustHead head_{};
  RobustNode node_{};
};

}  // namespace rueda::life
