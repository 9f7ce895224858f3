// The text after -H, of a hostfile and of Slurm: every rank gets one place, and the places fit each
// other.
#include "launcher/job/host_plan.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  using fuzz::expect;
  fuzz::Input input(data, size);
  const int num_proc = 1 + input.number<uint8_t>() % 64;
  const std::string text(input.rest());
  for (const auto& hosts : {launcher::parse_hosts(text), launcher::parse_hostfile(text, "f"),
                            launcher::parse_slurm(text, "4(x2),1")}) {
    if (!hosts.ok()) continue;
    for (const auto& host : hosts.value()) {
      expect(host.slots >= 1, "hosts have slots");
      expect(launcher::is_host_name(host.host), "a host has a name that may be on a command line");
    }
    const auto plan =
        launcher::plan_hosts(num_proc, hosts.value(), {"here", "localhost", "::1"}, "");
    if (!plan.ok()) continue;
    Rank next = 0;
    for (const launcher::HostPlan& host : plan.value()) {
      expect(!host.places.empty(), "a host of the job has a rank");
      for (const launcher::RankPlace& place : host.places) {
        expect(place.rank == next++ && place.size == num_proc, "ranks are numbered through");
        expect(place.local_rank >= 0 && place.local_rank < place.local_size, "local rank in size");
        expect(place.cross_rank >= 0 && place.cross_rank < place.cross_size, "cross rank in size");
      }
    }
    expect(next == num_proc, "one place for each rank");
  }
  return 0;
}
