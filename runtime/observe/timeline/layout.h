// Layout: events as what a timeline file holds (lines, packets: timeline_file.h).
//
//   horovod_layout   Horovod's dialect: a "process" for each tensor, phases as pairs of B and E,
//                    times since the start. Rank 0's view, for the tools that know it.
//   tracks_layout    a process for each rank, a track for each stage, arrows from submission to
//                    end, on a clock that all ranks share; files of several ranks may be put
//                    together.
//
// Pure. Events that began before the start are left out. One thread.
#pragma once

#include <memory>
#include <string>

#include "runtime/observe/timeline/event.h"
#include "runtime/observe/timeline/labels.h"
#include "runtime/observe/timeline/timeline_file.h"

namespace rueda::timeline {

// Whose file, and since when.
struct Origin {
  Rank rank = 0;
  std::string name;          // "rank 1 (pid 4711 on node2)"
  Nanos start = 0;           // of the own clock
  int64_t epoch_micros = 0;  // wall clock at the start
  Nanos clock_offset = 0;    // add it to the own clock to get rank 0's
  Nanos clock_error = 0;     // at most
};

class Layout {
 public:
  virtual ~Layout() = default;
  // Each appends whole lines, separated by ",\n", with one in front unless *out is empty; or whole
  // packets. What a file begins with: who this is, and all that later events refer to. Another file
  // may begin at any time, to which the events go from then on.
  virtual void open(std::string* out) = 0;
  virtual void add(const Event& event, std::string* out) = 0;
  // The file ends now: what has begun and not ended.
  virtual void close(Nanos /*now*/, std::string* /*out*/) {}
  // So many events were dropped before now.
  virtual void lost(uint64_t count, Nanos now, std::string* out) = 0;
  // All that was added is in *out then.
  virtual void flush(std::string* /*out*/) {}
};

// labels: borrowed.
std::unique_ptr<Layout> horovod_layout(const Labels* labels, Origin origin);
std::unique_ptr<Layout> tracks_layout(const Labels* labels, Origin origin, Form form = Form::kJson);

}  // namespace rueda::timeline
