// What the flight recorder costs: nanoseconds per operation, best of several rounds.
//
//   negotiated   submitted, agreed, started, ended, as the runtime does it
//   planned      a batch of one tensor entered and ended
#include <algorithm>
#include <cstdio>

#include "collectives/host/monotonic.h"
#include "runtime/observe/flight/flight_recorder.h"

int main() {
  using namespace rueda::flight;
  const auto recorder = FlightRecorder::open(-1, {});
  rueda::wire::Request request;
  request.name = "allreduce.model.layers.12.attention.weight";
  request.shape = {1024, 1024};
  constexpr int kRounds = 40, kOperations = 50000;
  double negotiated = 1e9, planned = 1e9;
  const uint64_t first = recorder->plan({&request}, 0, 1);
  for (int round = 0; round < kRounds; ++round) {
    int64_t begun = host::monotonic_ns();
    for (int i = 0; i < kOperations; ++i) {
      const auto record = recorder->submitted(request, 0, 1, Path::kNegotiated);
      recorder->cached(record);
      const int64_t now = host::monotonic_ns();  // one for a batch
      recorder->agreed(record, now);
      recorder->started(record, static_cast<uint64_t>(i), now);
      recorder->ended(record, now, true);
    }
    negotiated =
        std::min(negotiated, static_cast<double>(host::monotonic_ns() - begun) / kOperations);
    begun = host::monotonic_ns();
    for (int i = 0; i < kOperations; ++i) {
      const uint64_t entry = recorder->entered(first, 1, static_cast<uint64_t>(i), begun);
      recorder->finished(entry, 1);
    }
    planned = std::min(planned, static_cast<double>(host::monotonic_ns() - begun) / kOperations);
  }
  std::printf("negotiated %.1f ns, planned %.1f ns per operation (targets: 150, 15)\n", negotiated,
              planned);
  return 0;
}
