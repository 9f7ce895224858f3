// OrderedGroup: the collectives of ranks that call them in one order, as MPI's communicators have
// them: no names, no root, no message of the agreement. One member's side of one group.
//
//   open here --all members' hellos--> connected --> closed here, its bye said, theirs heard
//
// A call, the n-th of the group:
//
//   waiting --connected--> entering --entries of all--> running ------------------> ended
//                (entries: a small            |  alike: its collectives (data)
//                 allgather, begun            |
//                 as soon as it is taken)     +--> telling --what all ask for--> running, or an
//                                             | not alike, or uneven             error on all
//                                             +--> asking, once: who has buffers for large ones
//
// Entries of many calls are under way at once; telling and running begin in the order of calls, on
// communicators of their own, so both are alike on all members. A call that is refused is refused
// by all, before anybody has touched a tensor, and the group works on.
//
// Ownership: borrows what groups share. Threads: who holds the progress lock.
// Failure:   a collective that fails ends more than the group: failure(). An abort ends the group
//            alone: each member lets go of everything, says so, and ends a call's requests when all
//            have, as they may read and write each other's memory.
// GPUs:      calls of GPU tensors are agreed on in the same way, and run on an NCCL communicator of
//            the members; they end when the GPU has them. Who says bye has nothing left on its GPU.
// End:       what a member says when it goes (bye) has the number of calls that have ended there:
//            these end everywhere, later ones fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/algorithms/native_communicator.h"
#include "collectives/base/config.h"
#include "runtime/engine/device_messages.h"
#include "runtime/engine/finisher.h"
#include "runtime/engine/group_call.h"
#include "runtime/engine/group_devices.h"
#include "runtime/engine/group_messages.h"
#include "runtime/engine/late_ranks.h"
#include "runtime/engine/process_set.h"
#include "runtime/engine/request.h"
#include "runtime/membership/fabric.h"
#include "runtime/membership/host_memory.h"
#include "runtime/membership/membership.h"
#include "runtime/negotiation/protocol_chooser.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/life/life_line.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

class OrderedGroup {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // What the groups of a rank share.
  struct Shared {
    const Config* config;
    const membership::Membership* membership;
    membership::Fabric* fabric;
    const membership::HostMemory* memory;
    life::LifeLine* life;  // null without agents
    Finisher* finisher;
    timeline::Recorder* recorder;
    flight::FlightRecorder* flight;
    LateRanks* late;
    std::shared_ptr<nccl::Machine> machine;
    DeviceMessages* device_messages;  // hears what is said of those outside of groups
  };

  // channels: which of this rank's groups of channels are its own; else what its hello says.
  OrderedGroup(const Shared& shared, ProcessSetPtr set, int64_t channels);
  ~OrderedGroup();

  // A group of these ranks is opened without buffers for its channels: it reserves them when a call
  // needs some for the first time. The same on all members.
  static bool reserves_late(const membership::HostMemory& memory, const std::vector<Rank>& ranks);

  const ProcessSetPtr& set() const { return set_; }
  int64_t channels() const { return channels_; }

  // ---- the members
  // To all others, once.
  void say_hello();
  // This member has yet to say that the group is open there.
  bool awaits(Rank rank) const;
  bool is_open_as(const std::string& key, const std::vector<int64_t>& ranks) const;
  // Who says hello as this number.
  void hear_hello(Rank rank, const wire::GroupWord& word);
  bool knows(Rank rank, uint64_t number) const;
  // A bye or an abort of one that has said hello.
  void hear(Rank rank, const wire::GroupWord& word);
  // It has left the job.
  void on_left(Rank rank);

  // ---- calls
  void take(Request* request, Time now);
  // One round. True if anything moved.
  bool advance();
  // Whoever waits for long tells the others, so that each knows who does not, and says so.
  void look_for_stalls(Time now);
  std::optional<Time> stall_deadline() const {
    return oldest() == nullptr ? std::nullopt : stall_check_;
  }
  // Calls are under way that advance() moves.
  bool busy() const { return !entering_.empty() || !running_.empty(); }
  bool waits_for_channels() const {
    return busy() && (entries_->waits_for_channels() || data_->waits_for_channels());
  }
  const Status& failure() const { return failure_; }

  // ---- the end
  // Of its user, here: what is under way ends, then it says bye.
  void close() { closing_ = true; }
  bool is_closing() const { return closing_; }
  // This rank leaves the job: what has not been agreed on ends with this.
  void leave(const Status& status);
  void fail_messages(const Status& status);
  bool uses_gpu() const { return devices_.uses_gpu(); }
  // What had been agreed on has ended here, and the others know.
  bool has_left() const { return bye_said_; }
  // Nobody needs it any more, nor reads its channels.
  bool is_over() const;
  // Ends everything here and on all members, with this text. Once; what members read of each
  // other's memory is used until all have said that they do not.
  void fail(const Status& status);
  // The job's end: everything ends with the verdict, no memory is touched any more.
  void break_down(const Status& verdict);
  void add_to(counters::Values* totals) const;

 private:
  struct Member {
    Rank rank = 0;
    std::optional<uint64_t> number;  // its own of this group: it has said hello
    int64_t channels = wire::GroupWord::kHasNone;
    uint64_t begun = 0;  // calls that it has begun, as far as it has said
    bool gone = false;   // it has said bye, or left
    bool ended = false;  // it has said that all has ended there: it touches nothing any more
  };
  struct Entry;  // an entry and its exchange, used again and again
  struct Call;
  using CallPtr = std::unique_ptr<Call>;

  Member* member(Rank rank);
  const std::string& name(Rank rank) const { return shared_.membership->name(rank); }
  void tell(const wire::GroupWord& word);
  void tell_of_messages(Rank to, wire::GroupWord word);
  void lose(Member* from, const Status& why);
  uint32_t lowest_number() const;
  void connect();

  // ---- ordered_call.cc: a call from its start to its end
  CallPtr make_call();
  void take_message(Request* request);
  void begin(CallPtr call);
  Status make_room(size_t calls);
  void enter(CallPtr call);
  bool agree_on_next();
  Result<CallSteps*> agree_by_entries(Call* call);
  KnownCalls::Communicators communicators_of(const Call& call);
  bool refuse_capture(std::span<Request* const> requests);
  Status begin_telling(Call* call);
  Result<CallSteps*> agree_by_telling(Call* call);
  Status run(Call* call);
  void end(CallPtr call, const Status& status);
  static void see_device_ends(Call* call);
  void count(const Call& call, bool well);
  void record(const Call& call);

  // ---- ordered_memory.cc: what large calls go through
  Status begin_asking(Call* call);
  void hear_answers(Call* call);
  bool sees_cma();
  uint32_t memory_flags(const Call& call);
  ShmProtocol protocol_of(const Call& call);
  void measure_protocols();

  void end_from(uint64_t number, const Status& status);
  bool nobody_touches_memory() const;
  const Call* oldest() const;
  void name_absentees(const Call& call, double age);
  void drop_running();
  void say_bye();

  const Shared shared_;
  const ProcessSetPtr set_;
  const int64_t channels_;
  const uint32_t flight_set_;    // for the flight recorder: the same on all members
  std::vector<Member> members_;  // by place
  LateRanks::Group late_;        // for whom its calls wait
  bool connected_ = false;
  std::unique_ptr<algorithms::NativeCommunicator> entries_;  // once connected
  std::unique_ptr<algorithms::NativeCommunicator> data_;
  // Of large calls, where a member has no buffers for its channels; else null.
  std::unique_ptr<algorithms::NativeCommunicator> by_messages_;
  enum class Buffers : uint8_t { kUnasked, kReserved, kLacking };
  Buffers buffers_;
  transport::Tag tags_ = 0;                 // once connected
  negotiation::ProtocolChooser protocols_;  // the first member's
  GroupDevices devices_;
  KnownCalls cache_;  // before the calls that use it
  std::vector<std::unique_ptr<Entry>> free_entries_;
  std::vector<CallPtr> free_calls_;
  std::vector<Request*> forming_;  // of a call some of whose requests are still in the queue
  std::vector<CallPtr> waiting_;   // until all members are here
  std::vector<CallPtr> entering_;  // in their order; the first may be telling
  std::vector<CallPtr> running_;   // in their order
  std::vector<CallPtr> dropped_;   // whose requests have ended, but not their exchange
  uint64_t next_ = 0;              // number of the next call
  uint64_t agreed_ = 0;            // calls before it have been agreed on here
  uint64_t given_ = 0;             // none from it on has been given to a GPU
  // Calls from `number` on fail with this.
  struct Limit {
    uint64_t number;
    Status status;
  };
  std::optional<Limit> limit_;
  bool failed_ = false;
  GroupMessages messages_;
  std::optional<Status> alone_;  // why the last of the others sends nothing more
  bool closing_ = false;
  bool leaving_ = false;
  bool bye_said_ = false;
  bool abandoned_ = false;
  bool sees_cma_ = false;
  std::optional<Time> stall_check_;  // while something is under way
  uint64_t told_begun_ = 0;          // the others know that this rank has begun so many
  double next_warning_ = 0;          // seconds, of the oldest call
  uint64_t warned_of_ = 0;           // that call
  Status failure_;
  counters::Values totals_;
};

}  // namespace rueda::engine
