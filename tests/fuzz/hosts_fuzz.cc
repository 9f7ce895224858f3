// The text after -H: every rank gets one place, and the places fit each other.
#include "launcher/host_plan.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  using fuzz::expect;
  fuzz::Input input(data, size);
  const int num_proc = 1 + input.number<uint8_t>() % 64;
  const std::string text(input.rest());
  const auto hosts = launcher::parse_hosts(text);
  if (hosts.ok()) {
    for (const auto& host : hosts.value()) {
      expect(host.slots >= 1, "hosts have slots");
      expect(!host.host.empty(), "a host has a name");
    }
  }
  const auto places = launcher::plan_hosts(num_proc, text, {"here", "localhost", "::1"});
  if (!places.ok()) return 0;
  expect(places.value().size() == static_cast<size_t>(num_proc), "one place for each rank");
  Rank next = 0;
  for (const launcher::RankPlace& place : places.value()) {
    expect(place.rank == next++ && place.size == num_proc, "ranks are numbered through");
    expect(place.local_rank >= 0 && place.local_rank < place.local_size, "local rank in its size");
    expect(place.cross_rank >= 0 && place.cross_rank < place.cross_size, "cross rank in its size");
  }
  return 0;
}
