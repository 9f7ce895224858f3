// A job of several nodes by PET_*.
#include "launcher/job/torch_nodes.h"

#include <catch2/catch.hpp>
#include <map>

using namespace rueda::launcher;

namespace {

using Texts = std::map<std::string, std::string>;

// "2x4, 1 of h:29500"
std::string shown(const Texts& variables, int gpus = 0) {
  const auto found = read_torch_nodes(
      [&](const char* name) -> const char* {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      gpus, 6);
  if (!found.ok()) return "! " + found.status().message();
  if (!found.value()) return "";
  const TorchNodes& nodes = *found.value();
  return std::to_string(nodes.nodes) + "x" + std::to_string(nodes.ranks_per_node) +
         (nodes.nodes == 1 ? ""
                           : ", " + std::to_string(nodes.rank) + " of " + nodes.address + ":" +
                                 std::to_string(nodes.port));
}

Texts with(Texts base, const Texts& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

const Texts kTwo = {{"PET_NNODES", "2"},
                    {"PET_NPROC_PER_NODE", "4"},
                    {"PET_NODE_RANK", "1"},
                    {"PET_MASTER_ADDR", "job-node-0-0.job"},
                    {"PET_MASTER_PORT", "29400"}};

}  // namespace

TEST_CASE("PET_* says nodes, ranks and where node 0 is", "[torch_nodes]") {
  CHECK(shown({}).empty());
  CHECK(shown({{"PET_NNODES", "1"}}) == "1x1");
  CHECK(shown({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "3"}}) == "1x3");
  CHECK(shown(kTwo) == "2x4, 1 of job-node-0-0.job:29400");
  CHECK(shown(with(kTwo, {{"PET_NNODES", "2:2"}})) == "2x4, 1 of job-node-0-0.job:29400");
  CHECK(shown(with(kTwo, {{"PET_MASTER_PORT", ""}})) == "2x4, 1 of job-node-0-0.job:29500");
}

TEST_CASE("ranks of a node are counted as asked", "[torch_nodes]") {
  const auto each = [](const char* count, int gpus) {
    return shown({{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", count}}, gpus);
  };
  CHECK(each("auto", 2) == "1x2");
  CHECK(each("auto", 0) == "1x6");
  CHECK(each("cpu", 2) == "1x6");
  CHECK(each("gpu", 2) == "1x2");
  CHECK_THAT(each("gpu", 0), Catch::Contains("no GPU is visible"));
  CHECK_THAT(each("many", 0), Catch::Contains("expected a number of ranks, auto, gpu or cpu"));
  CHECK_THAT(each("0", 0), Catch::Contains("PET_NPROC_PER_NODE='0'"));
}

TEST_CASE("what is missing or wrong is named", "[torch_nodes]") {
  const std::vector<std::pair<Texts, std::string>> table = {
      {{{"PET_NNODES", "1:4"}}, "no elastic membership"},
      {{{"PET_NNODES", "x"}}, "PET_NNODES='x'"},
      {{{"PET_NODE_RANK", ""}}, "PET_NODE_RANK is not set"},
      {{{"PET_NODE_RANK", "2"}}, "expected 0 to 1"},
      {{{"PET_MASTER_ADDR", ""}}, "PET_MASTER_ADDR is not set"},
      {{{"PET_MASTER_ADDR", "-h"}}, "PET_MASTER_ADDR='-h'"},
      {{{"PET_MASTER_PORT", "0"}}, "PET_MASTER_PORT='0'"},
      {{{"PET_NPROC_PER_NODE", "60000"}}, "more than 65536 ranks"},
  };
  for (const auto& [change, reason] : table)
    CHECK_THAT(shown(with(kTwo, change)), Catch::StartsWith("! ") && Catch::Contains(reason));
}

TEST_CASE("a pod's place is not its ranks'", "[torch_nodes]") {
  TorchNodes nodes;
  nodes.address = "h0";
  nodes.port = 29400;
  std::vector<std::string> environment = {"A=1", "RANK=1", "WORLD_SIZE=2", "MASTER_PORT=7"};
  set_torch_variables(nodes, &environment);
  CHECK(environment == std::vector<std::string>{"A=1", "MASTER_PORT=7", "MASTER_ADDR=h0"});
}

TEST_CASE("without a key the Secret is named", "[torch_nodes]") {
  TorchNodes nodes;
  nodes.nodes = 2;
  const std::string text = no_key_for_nodes(nodes);
  for (const char* part : {"PET_NNODES=2", "RUEDA_KEY_FILE", "secret generic rueda-job-key"})
    CHECK_THAT(text, Catch::Contains(part));
}
