"""The tables of settings and counters are sound, what was made from them is current, and nothing else names what is not there."""
import importlib.util
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("generate_tables", ROOT / "scripts" / "generate_tables.py")
generator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generator)
settings, counters = generator.settings, generator.counters

TABLE = {"collectives/base/tables/settings.py", "collectives/base/tables/counters.py", "tests/scripts/tables_test.py"}
FOLDERS = ("attention", "bindings", "collectives", "docs", "examples", "launcher", "proto", "runtime", "scripts", "tests")
NAME = r"\bRUEDA_[A-Z0-9_]*[A-Z0-9]\b"
NAMES = {setting.name for setting in settings.SETTINGS}
UNITS = ("ranks", "bytes", "bytes per second", "seconds", "tensors", "buffers", "connections")
# Variables that only tests, benchmarks and scripts read; names that a test spells wrongly.
OF_TOOLS = ("RUEDA_TEST_", "RUEDA_BENCH_", "RUEDA_SIMULATION_", "RUEDA_FUZZ_", "RUEDA_CHECK_")
MISSPELT = {"RUEDA_LOG_LEVLE", "RUEDA_LOG_LEVELS", "RUEDA_FUSION_TRESHOLD", "RUEDA_STAGING_BUFFER", "RUEDA_MY_OWN"}

# Constants of the headers that tests/python/test_schema.py makes up.
OF_HEADERS = {"RUEDA_RED", "RUEDA_GREEN", "RUEDA_BLUE", "RUEDA_FLAG", "RUEDA_LESS"}


def files(*suffixes):
    """path -> text, of the repository's files."""
    found = [ROOT / "README.md", ROOT / "CMakeLists.txt"]
    for top in FOLDERS:
        found += (ROOT / top).rglob("*")
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
            for file in found if file.suffix in suffixes and file.is_file()}


def amount(text):
    """What "64 MiB", "1,024" or "120 s" says, in the unit of its setting; a word as it is."""
    number, unit = re.fullmatch(r"([\d.,]*) ?(.*)", text).groups()
    if not number:
        return "" if unit == "none" else unit
    return float(number.replace(",", "")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(unit[:1], 1)


class Tables(unittest.TestCase):
    def test_what_was_made_is_current(self):
        self.assertEqual(sorted(generator.stale()), [], "run scripts/generate_tables.py")

    def test_what_was_made_says_so_in_its_first_line(self):
        for path in generator.FILES:
            text = (ROOT / path).read_text(encoding="utf-8")
            where = text.partition("\n")[0] if not path.endswith(".md") else text
            self.assertRegex(where, r"[Gg]enerated by scripts/generate_tables.py from collectives/base/tables/\w+.py", path)

    def test_a_file_that_was_changed_by_hand_is_named(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/generate_tables.py"), "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        made = dict(generator.FILES)
        try:
            generator.FILES["collectives/base/config_struct.h"] = lambda: "something else\n"
            self.assertEqual(list(generator.stale()), ["collectives/base/config_struct.h"])
        finally:
            generator.FILES.update(made)

    def test_a_page_without_a_section_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "docs/settings.md: it has the parts .*, the table .*'Weather'"):
            generator.page("docs/settings.md", settings, {s.section for s in settings.SETTINGS} | {"Weather"}, str)

    def test_a_setting_has_its_name_and_field_alone(self):
        for column in ("name", "field", "meaning"):
            values = [getattr(setting, column) for setting in settings.SETTINGS]
            self.assertEqual(sorted(values), sorted(set(values)))
        horovod = [setting.horovod for setting in settings.SETTINGS if setting.horovod]
        horovod += [switch.horovod for switch in settings.SWITCHES]
        self.assertEqual(len(horovod), len(set(horovod)))
        for setting in settings.SETTINGS:
            self.assertRegex(setting.name, r"^RUEDA_[A-Z][A-Z0-9_]+$")
            self.assertRegex(setting.field, r"^[a-z][a-z0-9_]+$")
            self.assertRegex(setting.horovod or "HOROVOD_X", r"^HOROVOD_[A-Z_]+$")

    def test_numbers_have_a_unit_and_lie_within_their_bounds(self):
        for setting in settings.SETTINGS:
            is_number = type(setting.default) in (int, float)
            with self.subTest(setting=setting.name):
                self.assertEqual(setting.unit in UNITS, is_number)
                if setting.field.endswith(("_bytes", "_seconds")):
                    self.assertEqual(setting.unit, setting.field.rpartition("_")[2])
                check, _, least, most, words = setting.allowed
                if check == "kPositive":
                    self.assertGreater(setting.default, 0)
                elif check == "kNotNegative":
                    self.assertGreaterEqual(setting.default, 0)
                elif check in ("kRange", "kPowerOfTwo"):
                    self.assertTrue(least <= setting.default <= most)
                elif words:
                    self.assertIn(setting.default, words)
                else:
                    self.assertFalse(is_number, "any number is too many")

    def test_names_of_before_are_no_settings_and_lead_to_one(self):
        for old in settings.RENAMED:
            self.assertNotIn(old.name, NAMES)
            self.assertIn(old.now, NAMES)

    def test_flags_set_settings_to_what_they_take(self):
        spellings = [name for flag in settings.FLAGS for name in (*flag.before, *flag.spellings, *flag.off)]
        self.assertEqual(len(spellings), len(set(spellings)))
        for flag in settings.FLAGS:
            with self.subTest(flag=flag.spellings[0]):
                setting = settings.SETTING.get(flag.setting)
                self.assertTrue(setting or flag.overrules)
                self.assertEqual(flag.excludes in spellings, bool(flag.excludes))
                if flag.takes == settings.MEBIBYTES:
                    self.assertEqual(setting.unit, "bytes")
                elif flag.takes == settings.SWITCH and setting:
                    words = setting.allowed.words or ("0", "1")
                    self.assertLessEqual({value for value in flag.on_off if value}, {*words, "0"})
                    self.assertEqual(flag.on_off[1] is not None, bool(flag.off))
                elif setting:
                    self.assertNotIsInstance(setting.default, bool)
        keys = {flag.key for flag in settings.FLAGS} | {switch.key for switch in settings.SWITCHES}
        self.assertLessEqual({flag.overrules for flag in settings.FLAGS}, keys)
        for switch in settings.SWITCHES:
            self.assertLessEqual(set(switch.zeroes), NAMES)

    def test_a_counter_has_its_name_alone(self):
        for rows in (counters.COUNTERS, counters.PROGRESS, counters.SUMMARY):
            names = [row.name for row in rows]
            self.assertEqual(len(names), len(set(names)))
            for row in rows:
                self.assertIn(row.kind, (counters.SUM, counters.GAUGE))
                self.assertTrue(row.unit and row.counted_by and row.meaning)

    def test_what_leaves_the_process_has_the_names_of_the_messages(self):
        for file, message, rows in (("proto/wire.proto", "RankSummary", counters.SUMMARY),
                                    ("proto/control.proto", "RankCounters", counters.PROGRESS)):
            [body] = re.findall(rf"^message {message} \{{(.*?)^\}}", (ROOT / file).read_text(), re.M | re.S)
            fields = set(re.findall(r"^\s*uint64 (\w+) = \d+;", body, re.M))
            self.assertLessEqual({row.name for row in rows}, fields)


class Mentions(unittest.TestCase):
    """Nobody speaks of a setting or a counter that there is not, or of another default."""

    @classmethod
    def setUpClass(cls):
        cls.pages = files(".md")
        cls.sources = files(".h", ".hpp", ".cc", ".c", ".cu", ".py", ".inc")
        own = TABLE | {path for path in generator.FILES if not path.endswith(".md")}
        cls.spoken = {path: text for path, text in {**cls.pages, **cls.sources}.items() if path not in own}

    def test_names_are_those_of_settings(self):
        build = files(".txt", ".cmake", ".in")
        defined = "\n".join(re.findall(r"^\s*#\s*define RUEDA_\w+|^\s*RUEDA_\w+ =", "\n".join(self.sources.values()), re.M))
        known = NAMES | set(settings.OTHER_VARIABLES) | MISSPELT
        known |= set(re.findall(NAME, defined)) | set(re.findall(NAME, "\n".join(build.values())))
        for path, text in self.spoken.items():
            names = {name for name in re.findall(NAME, text) if not name.startswith(OF_TOOLS)}
            if path == "tests/base/config_test.cc":
                names -= {old.name for old in settings.RENAMED}
            if path == "tests/python/test_schema.py":  # headers of its own, with constants
                names -= OF_HEADERS
            self.assertEqual(names - known, set(), path)

    def test_defaults_are_those_of_the_table(self):
        """`RUEDA_X` (60), `RUEDA_X` (default 60, ...); 60 seconds (`RUEDA_X`..."""
        said = []
        for text in self.pages.values():
            text = re.sub(r"\s+", " ", text)
            said += re.findall(r"`(RUEDA_\w+)` \((?:default )?([\w.,]+(?: [KMG]i?B| s)?)[;:,)]", text)
            said += [(name, value) for value, name in re.findall(r"(\d[\d.,]*) seconds \(`(RUEDA_\w+)`", text)]
        said = [(name, value) for name, value in said if name in NAMES]
        self.assertGreater(len(said), 15)
        for name, value in said:
            self.assertEqual(amount(value), amount(generator.shown(settings.SETTING[name].default)), f"{name} ({value})")

    def test_counters_that_are_asked_for_are_there(self):
        asked = [(path, name) for path, text in self.spoken.items()
                 for name in re.findall(r"""\bcounter\((?:\w+, )?["'](\w+)["']\)""", text)]
        self.assertGreater(len(asked), 30)
        for path, name in asked:
            self.assertIn(name, {row.name for row in counters.COUNTERS}, path)


if __name__ == "__main__":
    unittest.main()
