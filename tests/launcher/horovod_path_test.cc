#include "launcher/job/horovod_path.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

using rueda::launcher::add_horovod_path;
using rueda::launcher::horovod_folders;
using rueda::launcher::Options;
using Words = std::vector<std::string>;

TEST_CASE("the folder is looked for in ruedarun's own package, then along PYTHONPATH",
          "[horovod_path]") {
  CHECK(horovod_folders("/venv/rueda/bin/ruedarun", "") ==
        Words{"/venv/rueda/compat/horovod_path"});
  CHECK(horovod_folders("/venv/rueda/bin/ruedarun", ":/a::/b:") ==
        Words{"/venv/rueda/compat/horovod_path", "/a/rueda/compat/horovod_path",
              "/b/rueda/compat/horovod_path"});
}

TEST_CASE("only --horovod changes the ranks' PYTHONPATH, and keeps what is on it",
          "[horovod_path]") {
  char folder[] = "/tmp/test-of-rueda-path-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string entry = folder;
  Options options;
  options.horovod = true;
  // None there yet.
  const auto missing = add_horovod_path({"PYTHONPATH=" + entry}, &options);
  CHECK_FALSE(missing.ok());
  CHECK(missing.message().find(entry + "/rueda/compat/horovod_path") != std::string::npos);
  CHECK(missing.message().find("python -m rueda.compat.horovod --path") != std::string::npos);

  std::filesystem::create_directories(entry + "/rueda/compat/horovod_path/horovod");
  Options without;
  REQUIRE(add_horovod_path({"PYTHONPATH=" + entry}, &without).ok());
  CHECK(without.environment.empty());

  REQUIRE(add_horovod_path({"PYTHONPATH=" + entry + ":/b"}, &options).ok());
  REQUIRE(options.environment.size() == 1);
  CHECK(options.environment[0].first == "PYTHONPATH");
  CHECK(options.environment[0].second == entry + "/rueda/compat/horovod_path:" + entry + ":/b");

  Options extended;  // -x wins over our environment, as for every variable
  extended.horovod = true;
  extended.environment = {{"PYTHONPATH", entry}};
  REQUIRE(add_horovod_path({"PYTHONPATH=/b"}, &extended).ok());
  CHECK(extended.environment.back().second == entry + "/rueda/compat/horovod_path:" + entry);
  std::filesystem::remove_all(entry);
}
