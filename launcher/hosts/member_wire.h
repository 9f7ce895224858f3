// Orders about members as messages.
#pragma once

#include <string>

#include "launcher/hosts/wire.h"
#include "launcher/job/member.h"

namespace rueda::launcher {

inline void to_wire(const RankPlace& place, control::Assign::Place* message) {
  message->set_rank(place.rank);
  message->set_size(place.size);
  message->set_local_rank(place.local_rank);
  message->set_local_size(place.local_size);
  message->set_cross_rank(place.cross_rank);
  message->set_cross_size(place.cross_size);
}

inline RankPlace from_wire(const control::Assign::Place& message) {
  return {message.rank(),       message.size(),       message.local_rank(),
          message.local_size(), message.cross_rank(), message.cross_size()};
}

inline control::ControllerMessage to_wire(const MemberStart& start) {
  control::ControllerMessage message;
  message.mutable_start_member()->set_member(start.member);
  to_wire(start.place, message.mutable_start_member()->mutable_place());
  message.mutable_start_member()->set_slot(start.slot + 1);
  return message;
}

inline MemberStart from_wire(const control::StartMember& message) {
  return {message.member(), from_wire(message.place()), {}, message.slot() - 1};
}

inline control::ControllerMessage stop_message(MemberId member, const std::string& why,
                                               bool knows = false) {
  control::ControllerMessage message;
  message.mutable_stop_member()->set_member(member);
  message.mutable_stop_member()->set_why(why);
  message.mutable_stop_member()->set_knows(knows);
  return message;
}

}  // namespace rueda::launcher
