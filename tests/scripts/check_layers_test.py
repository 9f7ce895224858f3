"""check_layers.py finds each kind of violation where it was planted, and only there."""
import importlib.util
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_layers.py"
spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


def findings_in(files):
    """The violations, as "file:line: rule", in a tree of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return [f"{f.path}:{f.line}: {f.rule}" for f in check_layers.check(Path(folder))]


BASE = {"collectives/base/status.h": "namespace rueda {\nclass Status;\n}\n"}
TRANSPORT = {"collectives/transport/connection.h": '#include "collectives/base/status.h"\nnamespace rueda::transport {\n}\n'}


class CheckLayers(unittest.TestCase):
    def test_a_tree_that_keeps_to_the_arrows_is_clean(self):
        self.assertEqual(findings_in({**BASE, **TRANSPORT}), [])

    def test_an_arrow_that_points_back_is_found(self):
        back = {"collectives/base/log.cc": '// a comment\n#include "collectives/transport/connection.h"\n'}
        self.assertEqual(findings_in({**BASE, **TRANSPORT, **back}), ["collectives/base/log.cc:2: arrow"])

    def test_no_layer_may_use_tests(self):
        files = {"tests/support/world.h": "", "runtime/step.cc": '#include "tests/support/world.h"\n'}
        self.assertEqual(findings_in(files), ["runtime/step.cc:1: arrow"])

    def test_only_the_tool_uses_the_c_abi_among_the_launcher(self):
        files = {"bindings/c/include/rueda/rueda.h": "", "launcher/main.cc": '#include "rueda/rueda.h"\n',
                 "launcher/tools/bench.cc": "#include <rueda/rueda.h>\n"}
        self.assertEqual(findings_in(files), ["launcher/main.cc:1: arrow"])

    def test_the_agent_and_the_controller_do_not_use_each_other(self):
        files = {f"launcher/{room}/{room}.{end}": f'#include "launcher/{other}/{other}.h"\n' if end == "cc" else ""
                 for room, other in (("agent", "controller"), ("controller", "agent")) for end in ("cc", "h")}
        self.assertEqual(findings_in(files),
                         ["launcher/agent/agent.cc:1: arrow", "launcher/controller/controller.cc:1: arrow"])

    def test_no_room_of_the_launcher_uses_what_is_above_the_rooms(self):
        files = {"launcher/driver.h": "", "launcher/job/job_id.cc": '#include "launcher/driver.h"\n'}
        self.assertEqual(findings_in(files), ["launcher/job/job_id.cc:1: arrow"])

    def test_the_public_header_knows_the_c_abi_alone(self):
        files = {**BASE, "bindings/cpp/include/rueda/rueda.hpp": '#include "collectives/base/status.h"\n'}
        self.assertEqual(findings_in(files), ["bindings/cpp/include/rueda/rueda.hpp:1: arrow"])

    def test_an_include_relative_to_the_file_is_found(self):
        files = {**BASE, "collectives/base/status.cc": '#include "status.h"\n'}
        self.assertEqual(findings_in(files), ["collectives/base/status.cc:1: spelling"])

    def test_a_foreign_namespace_is_found_but_may_be_declared_into(self):
        files = {
            "collectives/kernels/a.h": "namespace rueda::transport {\nint f();\n}\n",
            "collectives/kernels/b.h": "namespace rueda::transport {\nclass Link;\n}  // namespace\n",
            "collectives/kernels/c.h": "namespace rueda {\nint g() { return 1; }\n}\n",
            "collectives/kernels/d.h": "namespace rueda::kernels::detail {\nint g();\n}\nnamespace {\n}\n",
        }
        self.assertEqual(findings_in(files),
                         ["collectives/kernels/a.h:1: namespace", "collectives/kernels/c.h:1: namespace"])

    def test_reading_the_environment_is_found_in_code_only(self):
        code = '// getenv("A")\nconst char* s = "getenv(";\nconst char* a = std::getenv("A");\n'
        files = {"runtime/engine/park.cc": code, "runtime/membership/place.cc": code, "launcher/command/options.cc": code}
        self.assertEqual(findings_in(files), ["runtime/engine/park.cc:3: environment"])

    def test_reserved_headers_are_found(self):
        files = {"runtime/engine/negotiate.cc": "#include <google/protobuf/message.h>\n#include \"wire.pb.h\"\n",
                 "tests/proto/oracle.cc": "#include <google/protobuf/message.h>\n#include \"wire.pb.h\"\n"}
        self.assertEqual(findings_in(files), ["runtime/engine/negotiate.cc:1: header", "runtime/engine/negotiate.cc:2: header"])

    def test_a_folder_without_a_layer_is_found(self):
        self.assertEqual(findings_in({"collectives/extra/a.cc": ""}), ["collectives/extra/a.cc:1: arrow"])


if __name__ == "__main__":
    unittest.main()
