// What the controller of a job tells an agent.
#pragma once

#include <map>
#include <string>

#include "collectives/base/types.h"
#include "launcher/job/member.h"
#include "launcher/observe/host_report.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::launcher {

// Something that happened elsewhere and that this host's ranks are to be stopped for, or a wish of
// the controller.
struct Order {
  enum class Kind {
    kRankFailed,
    kRankLost,
    kSignal,
    kUserSignal,
    kOutputClosed,
    kKill,
    kObserve,
    kMail,
    kDrain,
    kStartMember,
    kStopMember,
    kBeginEpoch,
    kAnnounce,
    kJobOver
  };
  Kind kind = Kind::kKill;
  int signal = 0;                       // of kSignal, kUserSignal
  int exit_code = 0;                    // of kJobOver, of an elastic job
  life::LostRank lost;                  // of kRankLost: the verdict, for every rank of this host
  HostQuestion question;                // of kObserve
  std::string text;                     // of kMail; of kStopMember: why, for the user
  MemberStart start;                    // of kStartMember
  MemberId member = kNoMember;          // of kMail, kStopMember
  bool knows = false;                   // of kStopMember: it was told, and ends by itself if it can
  std::map<MemberId, Rank> ranks = {};  // of kBeginEpoch: of the whole epoch
  uint64_t word = 0;                    // of kAnnounce, as the life page has it
};

}  // namespace rueda::launcher
